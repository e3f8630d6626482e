import pytest

from tenora_platform.auth.api_keys import new_secret, parse_bearer, redacted, secret_sha256


def test_a_new_secret_parses_and_never_repeats() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    for secret in secrets:
        assert len(secret) == len("sk-tenora-") + 43
        assert parse_bearer(f"Bearer {secret}") == secret


def test_what_is_stored_and_shown_does_not_give_the_secret_away() -> None:
    secret = new_secret()
    assert len(secret_sha256(secret)) == 64
    assert redacted(secret) == f"sk-tenora-...{secret[-4:]}"


def test_the_scheme_is_read_whatever_its_case() -> None:
    secret = new_secret()
    assert parse_bearer(f"bearer {secret}") == secret
    assert parse_bearer(f"BEARER   {secret} ") == secret


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic dXNlcjpwdw==",
        "Bearer sk-tenora-short",
        "Bearer sk-other-" + "a" * 43,
        "Bearer sk-tenora-" + "a" * 44,
        "Bearer sk-tenora-" + "ä" * 43,
        "Bearer sk-tenora-" + "a" * 42 + "\0",
        "Bearer sk-tenora-" + "a" * 43 + " x",
    ],
)
def test_anything_else_holds_no_secret(header: str | None) -> None:
    assert parse_bearer(header) is None
