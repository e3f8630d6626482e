"""The grammar of names and of `model` strings."""

import pytest

from tenora_platform.adapters.names import CalledAdapter, check_name, parse_model
from tenora_platform.errors import InvalidInput


@pytest.mark.parametrize("name", ["a", "0", "support-json", "v1.2_b", "a" * 64])
def test_takes_plain_lower_case_names(name: str) -> None:
    assert check_name(name, "base-model") == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "Support", "a b", "a/b", "../other-tenant/a", "a%2fb", "a:b", "a@1", "-a", ".a", "_a",
     "a" * 65, "é", "e\u0301", "ﬁne", "a\0", "a\n", "__base__", "x' onmouseover='1", "<img>",
     "=cmd()"],
)  # fmt: skip
def test_refuses_every_other_spelling(name: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_name(name, "base-model")
    assert (refusal.value.code, refusal.value.param) == ("invalid_adapter_name", "name")
    assert parse_model(name) is None or name == "a@1"


@pytest.mark.parametrize("name", ["lora", "default", "base", "nul", "base-model"])
def test_refuses_reserved_names(name: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_name(name, "Base-Model")
    assert refusal.value.code == "reserved_adapter_name"


def test_a_model_string_is_a_name_with_or_without_a_revision() -> None:
    assert parse_model("a-b") == CalledAdapter("a-b", None)
    assert parse_model("a-b@12") == CalledAdapter("a-b", 12)


@pytest.mark.parametrize(
    "model", ["a@", "a@0", "a@01", "a@-1", "a@1@2", "a@x", "a@1 ", "a@" + "9" * 10, "@1", "a@١"]
)
def test_any_other_model_string_calls_no_adapter(model: str) -> None:
    assert parse_model(model) is None
