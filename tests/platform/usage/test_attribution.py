import msgspec
import pytest

from tenora_platform.kit.ids import new_id
from tenora_platform.usage.attribution import Attribution

PLAIN = Attribution(
    tenant_id=new_id(),
    project_id=new_id(),
    api_key_id=new_id(),
    model="legal@3",
    base_model="base",
    adapter_id=new_id(),
    adapter_revision=3,
    price_version_id=new_id(),
    endpoint="/v1/chat/completions",
    streamed=True,
    time_zone="Europe/Vienna",
)


def test_an_envelope_survives_the_engine() -> None:
    assert Attribution.decode(PLAIN.encode()) == PLAIN


def test_an_envelope_of_a_newer_version_can_be_opened() -> None:
    newer = {**msgspec.to_builtins(PLAIN), "something_new": 1}
    assert Attribution.decode(msgspec.msgpack.encode(newer)) == PLAIN


@pytest.mark.parametrize("envelope", [b"", b"\xc1", b"\x80", b"not msgpack"])
def test_anything_else_is_a_decode_error(envelope: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Attribution.decode(envelope)
