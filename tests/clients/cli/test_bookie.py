"""`daybook bookie check | rebuild-index | export`: directories of stopped and running bookies."""

import json
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from crc32c import crc32c

from daybook.bookie.storage.disk import FileDisk
from daybook.bookie.storage.index import open_rocks_index
from daybook.bookie.storage.store import open_store
from tests.bookie.storage.conftest import Answers
from tests.bookie.storage.oracle import entry
from tests.clients.cli.conftest import Daybook
from tests.harness.clocks import FixedClock


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "d0"

    async def fill() -> None:
        async with _open(directory) as answers:
            for entry_id in range(20):
                answers.add(7, entry_id)
            await answers.all()

    trio.run(fill)
    return directory


@asynccontextmanager
async def _open(directory: Path) -> AsyncGenerator[Answers]:
    async with open_store(
        disk=FileDisk(),
        directories=[str(directory)],
        index=open_rocks_index,
        clock=FixedClock(),
    ) as store:
        yield Answers(store)


def damage(directory: Path) -> None:
    (path,) = (directory / "log").glob("*.log")
    data = bytearray(path.read_bytes())
    data[data.index(b"7:3:") + 20] ^= 1
    path.write_bytes(data)


def test_check_says_what_there_is(daybook: Daybook, directory: Path) -> None:
    code, out, _ = daybook("bookie", "check", str(directory), "--output", "json")
    assert code == 0
    report = json.loads(out)
    assert (report["ledgers"], report["entries"], report["problems"]) == (1, 20, [])
    assert "ledgers" in daybook("bookie", "check", str(directory))[1]


@pytest.mark.parametrize("command", ["check", "export", "rebuild-index"])
def test_what_a_newer_release_wrote_is_said_in_words(
    daybook: Daybook, directory: Path, command: str
) -> None:
    (path,) = (directory / "log").glob("*.log")
    data = bytearray(path.read_bytes())
    data[8:12] = (2).to_bytes(4, "big")
    data[24:28] = crc32c(bytes(data[:24])).to_bytes(4, "big")
    path.write_bytes(data)
    code, _, error = daybook("bookie", command, str(directory))
    assert code == 2
    assert "version 2" in error
    assert "Traceback" not in error


def test_damage_is_said_and_the_exit_code_is_1(daybook: Daybook, directory: Path) -> None:
    damage(directory)
    code, out, err = daybook("bookie", "check", str(directory))
    assert code == 1
    assert "a batch is damaged" in err
    code, out, err = daybook("bookie", "export", str(directory))
    assert code == 1
    assert "1 entries cannot be read" in err
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["entry"] for line in lines if "error" in line] == [3]


def test_export_writes_entries_in_order(daybook: Daybook, directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "entries"
    command = ("bookie", "export", str(directory))
    code, _, _ = daybook(*command, "--ledger", "7", "--to", str(target))
    assert code == 0
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["entry"] for line in lines] == list(range(20))
    assert b64decode(lines[5]["data"]) == entry(7, 5)
    assert daybook(*command, "--ledger", "8")[1:] == ("", "no entry of ledger 8 is here\n")


def test_a_target_of_an_export_that_fails_is_no_fault_of_the_directory(
    daybook: Daybook, directory: Path, tmp_path: Path
) -> None:
    for target in (tmp_path / "nowhere" / "entries", Path("/dev/full")):
        code, _, err = daybook("bookie", "export", str(directory), "--to", str(target))
        assert code == 2
        assert "the entries cannot be written" in err
        assert str(directory) not in err


def test_rebuild_index_makes_it_again(daybook: Daybook, directory: Path) -> None:
    (directory / "index" / "CURRENT").write_bytes(b"nonsense\n")
    code, _, err = daybook("bookie", "check", str(directory))
    assert code == 2
    assert "index" in err
    assert daybook("bookie", "rebuild-index", str(directory))[0] == 0
    assert daybook("bookie", "check", str(directory))[0] == 0


def test_rebuild_index_says_what_the_log_has_lost(daybook: Daybook, directory: Path) -> None:
    damage(directory)
    code, _, err = daybook("bookie", "rebuild-index", str(directory))
    assert code == 1
    assert "lost: positions" in err
    assert "records were lost" in daybook("bookie", "check", str(directory))[2]


def test_a_directory_in_use_is_refused_in_words(daybook: Daybook, directory: Path) -> None:
    lock = trio.run(FileDisk().lock_directory, str(directory))
    try:
        for command in ("check", "rebuild-index", "export"):
            code, _, err = daybook("bookie", command, str(directory))
            assert code == 2
            assert "is in use: stop the bookie first" in err
    finally:
        lock.release()


def test_what_is_no_directory_of_a_bookie_is_refused(daybook: Daybook, tmp_path: Path) -> None:
    code, _, err = daybook("bookie", "check", str(tmp_path))
    assert code == 2
    assert "not a directory of a bookie" in err
