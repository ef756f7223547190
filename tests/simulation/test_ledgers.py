"""Ledgers that clients write without brokers: forced, left by their writers, recovered."""

from dataclasses import replace

import pytest

from daybook.clients import ledgers
from tests.history.events import Event, LedgerVersion
from tests.history.ledger_events import Confirmed, LedgerCreate, LedgerEnd, LedgerRead
from tests.simulation.acts import At, Kill, KillAll, SlowDisk
from tests.simulation.nemesis import draw_plan
from tests.simulation.plan import (
    LedgerWork,
    Mishap,
    Plan,
    Produce,
    Shape,
    Topic,
    WatchLedgers,
    WriteLedgers,
)
from tests.simulation.run import Outcome, simulate
from tests.simulation.settings import Settings

T = "persistent://public/default/t1"
_LONG_S = 1000.0  # the storm's length


def killed(manner: str, *, flush: float, seed: int = 1) -> Plan:
    """Return a plan that kills the writer, cuts all bookies' power and recovers the ledger."""
    return Plan(
        seed=seed,
        shape=Shape(bookies=3, brokers=1, clients=2, settings=Settings(racks=2)),
        topics=(Topic(T),),
        work=(
            Produce("p", "client-2", T, messages=2),
            WriteLedgers(
                "w", "client-1", (3, 3, 2), manner, entries=300, pace_s=0.004, flush=flush
            ),
            WatchLedgers("follow", "client-2", "follow", 0.3),
            WatchLedgers("recover", "client-2", "recover", 3.0),
        ),
        faults=(
            Mishap("f1", At(0.3), Kill("client-1", _LONG_S)),
            Mishap("f2", At(0.3), KillAll(0.1, power=True)),
        ),
        storm_s=4.0,
    )


def those(outcome: Outcome, kind: type[Event]) -> list[Event]:
    return [each.event for each in outcome.events if isinstance(each.event, kind)]


@pytest.mark.parametrize("manner", ["plain", "advanced", "deferred"])
def test_what_was_confirmed_is_there_whoever_was_killed(manner: str) -> None:
    outcome = simulate(killed(manner, flush=1.0))
    assert outcome.violations == []
    (created,) = those(outcome, LedgerCreate)
    assert isinstance(created, LedgerCreate)
    assert created.manner == manner
    assert those(outcome, Confirmed)
    assert those(outcome, LedgerEnd)
    assert [each.ledger for each in those(outcome, LedgerRead) if isinstance(each, LedgerRead)] == [
        created.ledger
    ]


def test_a_writer_that_counts_what_was_only_sent_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries under way when all bookies lose power are lost; this alone shows the fault."""

    def sent(writer: ledgers.DeferredWriter) -> int:
        return writer.last_add_pushed

    monkeypatch.setattr(ledgers.DeferredWriter, "last_add_confirmed", property(sent))
    plan = killed("deferred", flush=0.0)
    names = plan.shape.bookie_names()
    slow = [Mishap(f"slow {name}", At(0.1), SlowDisk(name, 5.0, 100.0)) for name in names]
    found = simulate(replace(plan, faults=(*slow, *plan.faults))).violations
    rules = {each.partition(":")[0] for each in found}
    assert "lost-entry" in rules


def test_copies_span_racks() -> None:
    plan = killed("plain", flush=1.0)
    plan = replace(plan, work=plan.work[:2], faults=(), storm_s=2.0)
    shape = replace(plan.shape, bookies=4, settings=Settings(racks=2, quorums=(2, 2, 2)))
    work = tuple(
        replace(each, quorums=(2, 2, 2), ledgers=4, entries=1)
        if isinstance(each, WriteLedgers)
        else each
        for each in plan.work
    )
    outcome = simulate(replace(plan, shape=shape, work=work))
    assert outcome.violations == []
    ensembles = [
        {int(bookie.partition(":")[0][-1]) % 2 for bookie in ensemble}
        for version in those(outcome, LedgerVersion)
        if isinstance(version, LedgerVersion)
        for _, ensemble in version.fragments
    ]
    assert len(ensembles) > 4
    assert all(len(racks) == 2 for racks in ensembles)


def test_every_manner_is_drawn() -> None:
    work = [each for seed in range(300) for each in draw_plan(seed).work]
    of_ledgers = [each for each in work if isinstance(each, LedgerWork)]
    assert {each.manner for each in of_ledgers if isinstance(each, WriteLedgers)} == {
        "plain",
        "advanced",
        "deferred",
    }
    assert {each.how for each in of_ledgers if isinstance(each, WatchLedgers)} == {
        "follow",
        "recover",
    }
