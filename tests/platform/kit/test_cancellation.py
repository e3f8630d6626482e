"""A cancellation that a library swallowed."""

import asyncio
import contextlib

import pytest

from tenora_platform.kit.cancellation import raise_if_cancelled


async def _swallowed() -> str:
    """What `asyncio.wait_for` of Python 3.11 does when its result comes at the same moment."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(10)
    raise_if_cancelled()
    return "went on"


async def test_it_is_raised_again_where_work_would_go_on() -> None:
    task = asyncio.create_task(_swallowed())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_whom_nobody_cancelled_goes_on() -> None:
    raise_if_cancelled()


async def test_a_time_out_of_ones_own_is_no_cancellation() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(10)
    raise_if_cancelled()
