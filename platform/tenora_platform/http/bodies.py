"""JSON bodies, decoded strictly: a wrong type is refused by name and never coerced.

Litestar converts leniently (`"0.7"` passes for a float), so `StrictRequest` decodes the body
into the struct that the handler's `data` argument names before Litestar sees it.
"""

import re
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.exceptions import InternalServerException

from tenora_platform.auth.principal import Principal
from tenora_platform.errors import InvalidInput
from tenora_platform.http.disconnect import ClientDisconnected

T = TypeVar("T")

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_MISSING_FIELD = re.compile(r"missing required field `([^`]+)`")


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """Base of a request body. Fields that it does not declare are ignored."""

    @classmethod
    def check_fields(cls, fields: dict[str, Any]) -> None:
        """Refuse what the declared types cannot express. Raises InvalidInput."""


class StrictRequest(Request[Principal, Any, Any]):
    """A request whose JSON body is decoded by `decode_body`.

    `user` is who was authenticated, where the route's policy asks for an API key.
    """

    async def json(self) -> Any:
        """The body as the struct that the handler asks for. Raises InvalidInput."""
        field = self.route_handler.parsed_data_field
        return decode_body(await self.body(), Any if field is None else field.annotation)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives. Raises ClientDisconnected if it does not arrive whole."""
        try:
            async for chunk in super().stream():
                yield chunk
        except InternalServerException as error:
            raise ClientDisconnected from error


def decode_body(body: bytes, target: type[T]) -> T:
    """Decode `body` into `target`. Raises InvalidInput with `param` naming the field at fault."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidInput(f"The body is not valid JSON: {error}.", code="invalid_json") from error
    except RecursionError as error:
        raise InvalidInput("The body is nested too deeply.", code="invalid_json") from error
    if isinstance(target, type) and issubclass(target, Body) and isinstance(fields, dict):
        target.check_fields(fields)
    try:
        return msgspec.convert(fields, target)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error


def _invalid(error: msgspec.ValidationError) -> InvalidInput:
    """Turn msgspec's `... - at `$.messages[0].role`` into a sentence and a `param`."""
    text = str(error)
    path = _PATH.search(text)
    sentence = text[: path.start()] if path else text
    param = path.group(1).split("[...]")[0] if path else ""
    if missing := _MISSING_FIELD.search(sentence):
        param = f"{param}.{missing.group(1)}".lstrip(".")
        return InvalidInput(
            f"The required field '{param}' is missing.", code="missing_required_field", param=param
        )
    where = f"'{param}'" if param else "The body"
    return InvalidInput(
        f"{where} is not valid: {sentence[:1].lower()}{sentence[1:]}.", param=param or None
    )
