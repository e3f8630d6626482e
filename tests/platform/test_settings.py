"""Settings from the environment: complete, typed, and named when they are wrong."""

import pytest

from tenora_platform.settings import RequestLimits, Settings, SettingsError

_REQUIRED = {
    "TENORA_DATABASE_URL": "postgresql+asyncpg://secret@/db",
    "TENORA_REDIS_URL": "unix:///r.sock",
    "TENORA_ENGINE_URL": "ipc:///e.sock",
    "TENORA_OBJECT_STORE_URL": "file:///objects",
}


def test_reads_every_variable() -> None:
    settings = Settings.from_environ(
        {
            **_REQUIRED,
            "TENORA_HOST": "0.0.0.0",
            "TENORA_PORT": "9000",
            "TENORA_LOG_LEVEL": "debug",
            "TENORA_METRICS_TOKEN": "t",
            "TENORA_MAX_BODY_BYTES": "10",
            "TENORA_MAX_ADAPTER_BYTES": "20",
        }
    )
    assert (settings.host, settings.port, settings.log_level) == ("0.0.0.0", 9000, "debug")
    assert settings.metrics_token == "t"
    assert settings.limits == RequestLimits(max_body_bytes=10, max_adapter_bytes=20)


def test_has_defaults_for_everything_that_is_not_an_address() -> None:
    settings = Settings.from_environ(_REQUIRED)
    assert (settings.host, settings.port, settings.metrics_token) == ("127.0.0.1", 8000, None)


@pytest.mark.parametrize("name", sorted(_REQUIRED))
def test_names_a_missing_variable(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.from_environ({**_REQUIRED, name: " "})


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "٣"])
def test_refuses_a_number_that_is_none(value: str) -> None:
    with pytest.raises(SettingsError, match="TENORA_PORT"):
        Settings.from_environ({**_REQUIRED, "TENORA_PORT": value})


def test_does_not_show_credentials_when_printed() -> None:
    assert "secret" not in repr(Settings.from_environ(_REQUIRED))
