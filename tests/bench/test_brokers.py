"""The benchmark of topics beside Pulsar and Kafka: the parts that need neither."""

import io
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from bench.brokers.__main__ import main
from bench.brokers.cases import CASES, GROUPS
from bench.brokers.lines import (
    DAYBOOK,
    KAFKA,
    LIMIT,
    OTHERS,
    PULSAR,
    Line,
    Lines,
    conditions,
    measured,
    warning,
)
from bench.brokers.python_load import serve
from bench.brokers.rounds import Run, Sizes, Turn
from bench.brokers.systems import System
from bench.spark.lines import Used
from tests.interop.peer import PeerError


def filled(line: Line, **rounds: list[float]) -> Line:
    for system, values in rounds.items():
        for number, value in enumerate(values):
            line.add(number, system, value)
    return line


def test_a_ratio_is_the_median_of_the_ratios_within_a_round() -> None:
    # The second round is five times as slow for both: the medians alone would say 5 / 2.
    line = filled(Line("alone-1kb", "p50, ms"), Daybook=[1, 5, 1], Pulsar=[2, 10, 2])
    assert (line.median(DAYBOOK), line.range(DAYBOOK)) == (1, (1, 5))
    assert line.ratios(DAYBOOK, PULSAR) == [0.5, 0.5, 0.5]
    assert line.ratio(DAYBOOK, PULSAR) == 0.5


def test_only_rounds_of_both_have_a_ratio() -> None:
    line = filled(Line("alone-1kb", "p50, ms"), Daybook=[1, 2, 3], Pulsar=[2, 0])
    assert line.ratios(DAYBOOK, PULSAR) == [0.5]  # nothing is divided by 0
    assert line.ratio(DAYBOOK, KAFKA) is None
    assert line.median(KAFKA) is None


def test_figures_of_one_case_share_a_line_in_the_order_in_which_they_came() -> None:
    lines = Lines()
    lines.add("a", 0, DAYBOOK, {"p50, ms": 1, "p99, ms": 2})
    lines.add("b", 0, DAYBOOK, {"p50, ms": 3})
    lines.add("a", 0, PULSAR, {"p50, ms": 4})
    assert [(line.case, line.figure) for line in lines.all()] == [
        *(("a", "p50, ms"), ("a", "p99, ms"), ("b", "p50, ms"))
    ]
    (first, _) = lines.all("a")
    assert first.values == {DAYBOOK: {0: 1}, PULSAR: {0: 4}}


def shown(table: object) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(table)
    return text.getvalue()


def test_a_turn_that_fails_is_told_and_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run([], tmp_path, Sizes(rounds=2), sys.executable, Lines())
    run.systems = {name: cast("System", SimpleNamespace(name=name)) for name in (DAYBOOK, KAFKA)}
    monkeypatch.setattr(run, "settle", lambda: None)
    turns: list[str] = []

    def turn(system: System) -> Turn:
        turns.append(system.name)
        if turns == [DAYBOOK, KAFKA]:
            raise PeerError("send", "error 0 IllegalStateException 7 messages were not stored")
        return Turn(figures={"p50, ms": 1.0})

    run.take_turns("alone", turn, systems=[DAYBOOK, KAFKA], limit=None, rehearse=False)
    assert turns == [DAYBOOK, KAFKA, KAFKA, DAYBOOK]
    (line,) = run.lines.all()
    assert line.values == {DAYBOOK: {0: 1.0, 1: 1.0}, KAFKA: {1: 1.0}}
    assert "alone, Kafka: a turn failed" in capsys.readouterr().out


def test_figures_and_conditions_have_tables_of_their_own() -> None:
    speed = filled(Line("alone-1kb", "p50, ms"), Daybook=[1, 3], Pulsar=[2, 3], limit=[0.5, 0.5])
    waited = filled(Line("alone-1kb", "servers waited"), Daybook=[0.25], Pulsar=[0.5])
    systems = (DAYBOOK, PULSAR)
    first, second = (
        shown(measured([speed, waited], systems)),
        shown(conditions([speed, waited], systems)),
    )
    assert "2.00 (1.00-3.00)" in first
    assert "0.75 (0.50-1.00)" in first  # D/P
    assert "waited" not in first.partition("\n")[2]
    assert "0.25" in second
    assert "p50" not in second
    assert "K" not in first.splitlines()[2]  # a system that did not run has no column
    assert speed.median(LIMIT) == 0.5


def test_a_run_beside_other_programs_says_so() -> None:
    quiet = filled(Line("alone-1kb", OTHERS), Daybook=[0.1, 0.2], Pulsar=[0.15])
    busy = filled(Line("fan-in", OTHERS), Daybook=[0.1, 0.9, 0.9], Pulsar=[0.1])
    assert not warning([quiet, Line("alone-1kb", "p50, ms", {DAYBOOK: {0: 9}})])
    assert "used 0.9 to 0.9 cores in 1 of 4 measurements" in warning([quiet, busy])


def test_a_turn_tells_the_processor_time_of_a_message_and_who_waited() -> None:
    turn = Turn(
        {"p50, ms": 1.5},
        messages=1000,
        servers=Used(2.0, {"broker": 0.2, "bookie": 0.3, "zookeeper": 0.1}, 0.5, others_s=0.9),
        client=Used(2.0, {"client": 0.4}, 0.1, others_s=1.1),
        idle=Used(2.0, {"idle": 0.1}, others_s=1.4),
    )
    found = turn.all_figures()
    assert found == pytest.approx(
        {
            "p50, ms": 1.5,
            "servers, us/message": 600,
            "  brokers, us/message": 200,
            "  bookies, us/message": 300,
            "client, us/message": 400,
            "servers waited": 0.25,
            "client waited": 0.05,
            "idle systems, cores": 0.05,
            "others, cores": 0.2,  # without the client and the idle systems
        }
    )


class Recording:
    """A client that notes its commands."""

    def __init__(self) -> None:
        self.given: list[dict[str, str]] = []

    def send(self, given: dict[str, str]) -> dict[str, object]:
        self.given.append(given)
        return {"messages": 7, "seconds": 0.5}

    def read(self, given: dict[str, str]) -> dict[str, object]:
        raise ValueError("no\ntopic")


def test_a_python_client_answers_each_command_with_one_line() -> None:
    client, answers = Recording(), io.StringIO()
    serve(client, io.StringIO("send on=Daybook rate=0\nread on=Daybook\n"), answers)  # type: ignore[arg-type]
    assert client.given == [{"on": "Daybook", "rate": "0"}]
    assert answers.getvalue() == "ok messages=7 seconds=0.5\nerror 0 ValueError no topic\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing"], "there is no 'nothing': alone-1kb, batched-1kb"),
        (["--systems", "Daybook Pulser"], "there is no 'Pulser': Daybook, Pulsar, Kafka"),
    ],
)
def test_names_that_do_not_exist_are_refused_before_anything_starts(
    words: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["brokers", *words])
    with pytest.raises(SystemExit):
        main()
    assert told in capsys.readouterr().err


def test_a_quick_run_has_all_cases_and_less_work() -> None:
    quick, full = Sizes.quick(), Sizes()
    assert quick.rounds < full.rounds
    assert quick.backlog < full.backlog
    assert len(CASES) == 12


def test_each_case_belongs_to_one_group() -> None:
    assert sorted(name for group in GROUPS for name in group) == sorted(CASES)


def test_too_little_disk_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["brokers", "--rounds", "3"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=38e9))
    with pytest.raises(SystemExit):
        main()
    assert "3 rounds take up to 39 GB" in capsys.readouterr().err
