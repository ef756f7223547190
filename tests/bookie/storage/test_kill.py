"""Real files, RocksDB, and a process that is killed during its work.

A kill keeps the page cache, so this proves less than `test_crashes`; it shows that the real disk
and index work with the store as the simulated ones do.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daybook.bookie.storage.disk import FileDisk
from daybook.bookie.storage.index import open_rocks_index
from daybook.bookie.storage.ledger_directory import LAST_ENTRY
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.status import StoreError
from daybook.bookie.storage.store import open_store
from daybook.wire.clock import SystemClock
from tests.bookie.storage.oracle import entry

LIMITS = StoreLimits(log=LogLimits(segment_bytes=300_000), checkpoint_entries=300, free_bytes_min=0)

WRITER = """
import sys, trio
from tests.bookie.storage.test_kill import write
trio.run(write, sys.argv[1])
"""


async def write(directory: str) -> None:
    """Add entries to ledger 1, and print each id as soon as it is acknowledged."""
    async with open_store(
        disk=FileDisk(),
        directories=[directory],
        index=open_rocks_index,
        clock=SystemClock(),
        limits=LIMITS,
    ) as store:
        try:
            next_id = int((await store.read(1, LAST_ENTRY))[8:16].hex(), 16) + 1
        except StoreError:
            next_id = 0
        while True:
            for entry_id in range(next_id, next_id + 7):
                store.add(
                    1,
                    entry_id,
                    b"key",
                    memoryview(entry(1, entry_id, size=entry_id % 5000)),
                    recovery=False,
                    done=lambda _, entry_id=entry_id: print(entry_id, flush=True),  # type: ignore[misc]
                )
            next_id += 7
            await store.force(1)


@pytest.mark.real
async def test_what_a_killed_process_has_acknowledged_is_there(tmp_path: Path) -> None:
    acknowledged = -1
    for life in range(4):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "d0")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220
        assert process.stdout is not None
        for _ in range(400 + 177 * life):
            acknowledged = max(acknowledged, int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
        for line in process.stdout.read().split(b"\n")[:-1]:
            acknowledged = max(acknowledged, int(line))
        process.wait()
        async with open_store(
            disk=FileDisk(),
            directories=[str(tmp_path / "d0")],
            index=open_rocks_index,
            clock=SystemClock(),
            limits=LIMITS,
        ) as store:
            assert not store.limbo
            assert not store.statistics().failure
            for entry_id in range(acknowledged + 1):
                assert await store.read(1, entry_id) == entry(1, entry_id, size=entry_id % 5000)
    assert len(list((tmp_path / "d0" / "log").iterdir())) > 4
