"""The benchmarks against Apache BookKeeper: the parts that need none of its software."""

import shutil
import sys
from types import SimpleNamespace

import pytest
import trio

from bench import limit
from bench.peers.__main__ import main
from bench.peers.load import Given, share, words
from bench.peers.rows import Demand, Row, times_java
from bench.peers.sides import JAVA, JAVA_ON_OURS, OURS, OURS_ON_APACHE
from bench.peers.ticker import Ticker


def test_commands_are_read_as_they_are_written() -> None:
    given = Given(words({"on": "own1", "ledgers": [3, 1, 2], "seconds": 2.5, "size": 64}))
    assert given.text("on") == "own1"
    assert given.ledgers() == [3, 1, 2]
    assert (given.real("seconds"), given.number("size")) == (2.5, 64)
    assert given.real("explicit_lac_s", 7.0) == 7.0
    with pytest.raises(KeyError):
        given.number("window")


@pytest.mark.parametrize(
    ("demand", "asked", "met"),
    [
        (Demand("", 2.0, at_least=2.0), ">= 2", True),
        (Demand("", 1.99, at_least=2.0), ">= 2", False),
        (Demand("", 4.0, at_most=4.0), "<= 4", True),
        (Demand("", 4.01, at_most=4.0), "<= 4", False),
        (Demand("", 0.1), "", True),
    ],
)
def test_what_is_asked_for_is_met_or_not(demand: Demand, asked: str, met: bool) -> None:
    assert (demand.asked, demand.met) == (asked, met)


def test_ratios_are_to_the_java_pair() -> None:
    found = {JAVA: 100.0, OURS: 250.0, OURS_ON_APACHE: 90.0, JAVA_ON_OURS: 100.0}
    demands = times_java(found, 2.0)
    assert [(d.value, d.met) for d in demands] == [(2.5, True), (0.9, False), (1.0, True)]
    row = Row.for_pairs("append", "MB/s", found, demands)
    assert (row.java, row.ours, row.ours_on_apache, row.java_on_ours) == (100, 250, 90, 100)


def test_shares_of_what_was_measured() -> None:
    ordered = list(map(float, range(100)))
    assert (share(ordered, 0.5), share(ordered, 0.99), share(ordered, 1)) == (50, 99, 99)


async def test_a_ticker_counts_the_beats_that_were_missed() -> None:
    with Ticker(0.001) as ticker:
        assert await ticker.wait() >= 1
        started = trio.current_time()
        while trio.current_time() < started + 0.01:
            pass  # busy, like a real load
        assert await ticker.wait() >= 9


def test_the_least_latency_is_measured_with_plain_processes() -> None:
    half, tail = limit.answered_ms(rate=500, seconds=0.2)
    assert 0 < half <= tail


def test_what_does_not_fit_on_the_disk_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nearly_full(path: str) -> SimpleNamespace:
        return SimpleNamespace(free=29e9)

    monkeypatch.setattr(sys, "argv", ["peers", "read"])
    monkeypatch.setattr(shutil, "disk_usage", nearly_full)
    with pytest.raises(SystemExit):
        main()
    assert "this takes up to 60 GB" in capsys.readouterr().err
