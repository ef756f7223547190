"""The reports of commands that take long."""

import os
import sys
from pathlib import Path

import click
import pytest
import trio
import trio.testing

from daybook.clients.cli.progress import Waiting, open_progress, report_waiting, waiting_for
from tests.clients.cli.conftest import Daybook, FakeAdmin
from tests.clients.python.fake_broker import FakeCluster

Capture = pytest.CaptureFixture[str]


async def test_what_comes_soon_needs_no_word(
    autojump_clock: trio.testing.MockClock, capsys: Capture
) -> None:
    del autojump_clock
    async with waiting_for("the broker at h:1", 30.0):
        await trio.sleep(1.9)
    assert capsys.readouterr().err == ""


async def test_what_is_waited_for_is_said_after_two_seconds_and_every_ten(
    autojump_clock: trio.testing.MockClock, capsys: Capture
) -> None:
    del autojump_clock
    failures: list[str] = []
    async with waiting_for("the broker at h:1", 30.0, lambda: failures[-1] if failures else None):
        await trio.sleep(11)
        failures.append("connection refused")
        await trio.sleep(10)
    assert capsys.readouterr().err.splitlines() == [
        "Waiting for the broker at h:1, for 28 s more.",
        "Waiting for the broker at h:1, for 18 s more: connection refused.",
    ]


async def test_what_has_come_in_between_is_waited_for_anew(
    autojump_clock: trio.testing.MockClock, capsys: Capture
) -> None:
    del autojump_clock
    waiting: list[Waiting] = []
    async with report_waiting(lambda: waiting[0] if waiting else None):
        for _ in range(5):
            waiting.append(Waiting("receipts", None))
            await trio.sleep(1.9)
            waiting.clear()
            await trio.sleep(0.9)
        assert capsys.readouterr().err == ""
        waiting.append(Waiting("receipts", None, "it is frozen"))
        await trio.sleep(3)
    assert capsys.readouterr().err == "Waiting for receipts: it is frozen.\n"


def test_who_waits_longer_than_was_said_says_nothing_of_the_time() -> None:
    waiting = Waiting("ZooKeeper at h:1", 10.0, "connection refused")
    assert waiting.line(9.5) == "Waiting for ZooKeeper at h:1, for 1 s more: connection refused."
    assert waiting.line(10.0) == "Waiting for ZooKeeper at h:1: connection refused."


async def test_errors_come_out_as_they_are() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with waiting_for("x", 30.0), open_progress("y"):
            raise ValueError("mine")


async def test_an_error_comes_out_also_when_the_command_is_being_cancelled() -> None:
    async def fail(scope: trio.CancelScope) -> None:
        async with report_waiting(lambda: None):
            scope.cancel()
            raise ValueError("the reason")

    with trio.CancelScope() as scope, pytest.raises(ValueError, match="the reason"):
        await fail(scope)


async def test_that_nobody_can_be_told_ends_no_work(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    del autojump_clock

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(click, "echo", closed)
    async with waiting_for("the broker at h:1", 30.0):
        await trio.sleep(25)


async def test_where_nobody_looks_there_is_a_line_every_ten_seconds(
    autojump_clock: trio.testing.MockClock, capsys: Capture
) -> None:
    del autojump_clock
    async with open_progress("Checking") as advance:
        await trio.sleep(10.5)
        for number in range(20):
            advance(number, 20, f"ledger {number}")
            await trio.sleep(1)
        assert not sys.stderr.isatty()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "Checking ...",
        "Checking: 45 %, ledger 9.",
        "Checking: 95 %, ledger 19.",
    ]


class Elapsed:
    def __str__(self) -> str:
        return f"{trio.current_time() - self.began_s:.0f} s"

    def __init__(self) -> None:
        self.began_s = trio.current_time()


async def test_a_line_says_the_time_now_also_if_nothing_was_reported_meanwhile(
    autojump_clock: trio.testing.MockClock, capsys: Capture
) -> None:
    del autojump_clock
    async with open_progress("Archiving") as advance:
        advance(0, 20, Elapsed())
        await trio.sleep(20.5)
    assert capsys.readouterr().err.splitlines() == [
        "Archiving: 0 %, 10 s.",
        "Archiving: 0 %, 20 s.",
    ]


async def test_work_that_lets_no_other_task_run_is_told_of(
    mock_clock: trio.testing.MockClock, capsys: Capture
) -> None:
    async with open_progress("checking") as advance:
        advance(1, 0, "")
        mock_clock.jump(10.0)
        advance(3, 2, "")  # bytes that are read twice count twice
        assert capsys.readouterr().err == "checking: 100 %.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "list", "--admin-url", "http://127.0.0.1:{}"),
        ("produce", "t", "/dev/null", "--service-url", "pulsar://127.0.0.1:{}"),
        ("consume", "t", "--service-url", "pulsar://127.0.0.1:{}"),
    ],
    ids=str,
)
def test_a_frozen_broker_is_waited_for_half_a_minute(
    daybook: Daybook, hurried: None, silent_port: int, arguments: tuple[str, ...]
) -> None:
    del hurried
    code, out, err = daybook(*(argument.format(silent_port) for argument in arguments))
    *waiting, sentence = err.splitlines()
    assert (code, out) == (1, "")
    assert [line.partition(" s more")[0] for line in waiting] == [
        f"Waiting for the broker at 127.0.0.1:{silent_port}, for {left}" for left in (28, 18, 8)
    ]
    assert "`daybook local status`" in sentence


def test_a_silent_broker_leaves_time_for_the_others(
    daybook: Daybook, hurried: None, silent_port: int, fake_admin: FakeAdmin
) -> None:
    del hurried
    fake_admin.answers["GET", "/admin/v2/persistent/public/default"] = 200, []
    answering = os.environ["DAYBOOK_ADMIN_URL"].removeprefix("http://")
    for _ in range(4):  # the text begins with any of them
        url = f"http://127.0.0.1:{silent_port},{answering}"
        code, _, err = daybook("topics", "list", "--admin-url", url)
        assert code == 0
        assert err.count("\n") in (0, 2)


def test_receipts_that_do_not_come_are_said(
    daybook: Daybook, fake: FakeCluster, hurried: None, tmp_path: Path
) -> None:
    del hurried
    fake.brokers["b1"].hold_receipts = True
    (tmp_path / "lines").write_text("one\ntwo\n")
    code, _, err = daybook("produce", "t", str(tmp_path / "lines"))
    assert code == 1
    waiting, *_, summary, sentence = err.splitlines()
    where = fake.url.removeprefix("pulsar://")
    assert waiting == f"Waiting for 2 receipts from the broker at {where}, for 28 s more."
    assert summary.startswith("0 messages stored")
    assert "Line 1 may not be stored" in sentence
