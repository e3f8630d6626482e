import time

from tenora_platform.kit.ids import new_id


def test_ids_are_version_7_of_the_rfc_variant() -> None:
    made = new_id()
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"


def test_ids_of_later_milliseconds_sort_later() -> None:
    first = new_id()
    time.sleep(0.003)
    assert first < new_id()


def test_ids_do_not_repeat() -> None:
    assert len({new_id() for _ in range(10_000)}) == 10_000
