"""An older copy of a bookie's directory is put back, as an operator does from a backup.

The copy is taken while the bookie is stopped, so it is whole; what it lacks is what came later.
One bookie alone suffers it: that is the loss of one disk, which an ack quorum of two bears.
"""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import trio

OLD_IMAGE = "old image"
Order: TypeAlias = Callable[[str, str], Awaitable[None]]


async def take_image(order: Order, bookie: str, data: Path) -> None:
    """Kill the bookie, copy its directory, start it again."""
    await order("kill", bookie)
    await trio.to_thread.run_sync(shutil.copytree, data, _copy_of(data))
    await order("start", bookie)


async def put_back(order: Order, bookie: str, data: Path) -> None:
    """Kill the bookie, and start it on the copy."""
    await order("kill", bookie)
    await trio.to_thread.run_sync(shutil.rmtree, data)
    await trio.to_thread.run_sync(_copy_of(data).rename, data)
    await order("start", bookie)


def _copy_of(data: Path) -> Path:
    return data.with_name(f"{data.name}.image")
