"""The system calls of the file disk, in their order, which later reads cannot show.

A simulated disk loses unsynced data; a real one does so only when its power is cut.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from daybook.bookie.storage.disk import FileDisk


class Calls:
    """The calls that write or sync, by the name of the file."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        pwritev = os.pwritev

        def write(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
            self._note("write and sync" if flags & os.RWF_DSYNC else "write", fd)
            return pwritev(fd, buffers, offset, flags)

        patch.setattr(os, "pwritev", write)
        for name in ("fsync", "fdatasync"):
            self._watch(patch, name)

    def _watch(self, patch: pytest.MonkeyPatch, name: str) -> None:
        call = getattr(os, name)

        def sync(fd: int) -> None:
            self._note("sync", fd)
            call(fd)

        patch.setattr(os, name, sync)

    def _note(self, what: str, fd: int) -> None:
        self.made.append(f"{what} {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")

    def take(self) -> list[str]:
        made, self.made = self.made, []
        return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


async def test_a_new_file_is_there_with_its_name_and_its_bytes(
    tmp_path: Path, calls: Calls
) -> None:
    log = tmp_path / "log"
    await FileDisk().make_directory(str(log))
    calls.take()
    appender = FileDisk().open_appender()
    await appender.start(str(log / "0.log"), [b"header", b"batch"])
    assert calls.take() == ["write and sync 0.log", "sync log"]
    await appender.aclose()


async def test_what_is_appended_is_synced_last(tmp_path: Path, calls: Calls) -> None:
    appender = FileDisk().open_appender()
    await appender.start(str(tmp_path / "0.log"), [b"header"])
    calls.take()
    await appender.write([b"small"])
    assert calls.take()[-1] == "write and sync 0.log"
    await appender.write([b"x" * (3 << 20)])
    assert calls.take() == ["write and sync 0.log"]
    await appender.write([b"x" * (9 << 20)])  # more than one write takes
    assert calls.take()[-1] in ("sync 0.log", "write and sync 0.log")
    await appender.aclose()


async def test_a_file_is_replaced_when_the_new_one_is_on_the_disk(
    tmp_path: Path, calls: Calls
) -> None:
    await FileDisk().write_file(str(tmp_path / "VERSION"), b"cookie")
    made = calls.take()
    assert made[-2].startswith("sync VERSION")
    assert made[-1] == f"sync {tmp_path.name}"


async def test_a_directory_is_there_with_its_parents(tmp_path: Path, calls: Calls) -> None:
    await FileDisk().make_directory(str(tmp_path / "a" / "b"))
    assert calls.take() == [f"sync {tmp_path.name}", "sync a"]
