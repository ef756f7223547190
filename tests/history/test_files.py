"""The format of the files: events are read as they were written, in the order of time."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.history.availability import gaps
from tests.history.events import (
    Event,
    Fault,
    HistoryError,
    Ok,
    Run,
    Send,
    Stamped,
    decode,
    encode,
)
from tests.history.recorder import FileSink, Memory, Recorder, load
from tests.history.story import A, T, good, sent, stamp


def test_every_event_is_read_as_it_was_written() -> None:
    for stamped in stamp(good()):
        assert decode(encode(stamped)) == stamped


def test_a_line_is_what_the_page_about_histories_says() -> None:
    line = encode(Stamped(12, "client-1", Ok(T, "p", 3, (5, 6, -1))))
    assert line == (
        b'{"at_ns":12,"by":"client-1","kind":"ok",'
        b'"topic":"persistent://public/default/t","producer":"p","seq":3,"position":[5,6,-1]}'
    )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'{"at_ns":1,"by":"x"}',
        b'{"at_ns":1,"by":"x","kind":"sent"}',
        b'{"at_ns":1,"by":"x","kind":"detach"}',
        b'{"at_ns":1,"by":"x","kind":"detach","consumer":3}',
        b'{"at_ns":1,"by":"x","kind":"detach","consumer":"c","more":1}',
        b'{"at_ns":"1","by":"x","kind":"detach","consumer":"c"}',
    ],
)
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(HistoryError):
        decode(line)


def test_files_of_several_processes_are_merged_by_time(tmp_path: Path) -> None:
    now = 0

    def tick() -> int:
        nonlocal now
        now += 1
        return now

    with FileSink(tmp_path / "a") as first, FileSink(tmp_path / "b") as second:
        one = Recorder("one", now_ns=tick, sink=first)
        two = Recorder("two", now_ns=tick, sink=second)
        one.note(Run())
        two.note(Send(T, "p", 0, "p/0"))
        one.named("three").note(Send(T, "q", 0, "q/0"))
        two.note(Ok(T, "p", 0, A))
    events = load(tmp_path / "a", tmp_path / "b")
    assert [stamped.at_ns for stamped in events] == [1, 2, 3, 4]
    assert [stamped.by for stamped in events] == ["one", "two", "three", "two"]


def test_a_line_that_was_cut_off_is_left_out_and_one_in_the_middle_is_an_error(
    tmp_path: Path,
) -> None:
    lines = [encode(stamped) for stamped in stamp(good())]
    path = tmp_path / "history"
    path.write_bytes(b"\n".join([*lines[:3], lines[3][:10]]))
    assert load(path) == stamp(good())[:3]
    path.write_bytes(b"\n".join([lines[0], lines[1][:10], lines[2], b""]))
    with pytest.raises(HistoryError, match="line 2"):
        load(path)


def test_the_command_line_checks_files(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b"\n".join([*map(encode, stamp(good())), b""]))
    assert _run(path).returncode == 0
    path.write_bytes(b"\n".join([*map(encode, stamp(sent(0, A))), b""]))
    done = _run(path)
    assert done.returncode == 1
    assert done.stdout.startswith("unread: persistent://public/default/t")
    assert done.stdout.endswith("3 events, 1 violations\n")


def _run(path: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.history", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_gaps_are_times_in_which_a_send_was_waiting_and_no_receipt_came() -> None:
    idle: list[Event] = [Fault("f", "a cut")] * 5
    memory = Memory()
    for stamped in stamp([*sent(0, A), *idle, *sent(1, None), *idle, Ok(T, "p", 1, A)]):
        memory.put(stamped)
    (gap, other) = gaps(memory.events)
    assert (gap.seconds, gap.fault) == (6.0, "a cut")
    assert (other.seconds, other.fault) == (1.0, "")
