"""Work that ends when its client leaves.

Litestar does not cancel a handler whose client has gone, so a handler that costs engine time
races its work against the connection.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from tenora_platform.errors import PlatformError

T = TypeVar("T")


class ClientDisconnected(PlatformError):  # noqa: N818 - states what happened
    """Nobody is left to answer. The status is seen in the access log alone."""

    status = 499
    code = "client_disconnected"
    default_message = "The client closed the connection before the answer was complete."


async def until_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, unless the client leaves first.

    The request's body must have been read. When the client leaves, or this call is cancelled,
    `work` is cancelled and its cleanup awaited before this returns.

    Raises:
        ClientDisconnected: the client left first.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
