"""What was cancelled stays cancelled."""

import asyncio


def raise_if_cancelled() -> None:
    """Raise CancelledError if somebody asked this task to end and a library swallowed it.

    `asyncio.wait_for` before Python 3.12 does, when its result comes together with the
    cancellation; SQLAlchemy's pool waits with it. Call this before work that costs something.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
