"""A log counts sizes, times and reads for its statistics, and nothing while nobody uses it."""

from collections.abc import Sequence
from math import isnan

import pytest
import trio
from trio.testing import MockClock

from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.traffic import (
    LATENCY_BOUNDS_S,
    NO_TRAFFIC,
    SIZE_BOUNDS,
    WINDOW_S,
    Traffic,
    TrafficMeter,
    WriteLatencies,
)
from tests.managed_ledger.world import World, play, send, settle, until


def filled(buckets: Sequence[int]) -> dict[int, int]:
    return {index: count for index, count in enumerate(buckets) if count}


async def test_an_entry_is_in_the_bucket_of_the_first_bound_that_is_not_below_it(
    autojump_clock: MockClock,
) -> None:
    meter = TrafficMeter(WriteLatencies())
    for index, bound in enumerate(SIZE_BOUNDS):
        meter.mark(2 * index)
        meter.confirmed(2 * index + 2, [bound, bound + 1])
    counts = meter.take()
    assert counts.sizes == [1, *[2] * (len(SIZE_BOUNDS) - 1), 1]
    assert counts.entries == 2 * len(SIZE_BOUNDS)
    assert counts.bytes == sum(2 * bound + 1 for bound in SIZE_BOUNDS)


async def test_a_latency_is_in_its_bucket(autojump_clock: MockClock) -> None:
    meter = TrafficMeter(WriteLatencies())
    for index, bound_s in enumerate((*LATENCY_BOUNDS_S, 7.0)):
        meter.mark(index)
        await trio.sleep(bound_s * 0.99)
        meter.confirmed(index + 1, [1])
    counts = meter.take()
    assert counts.latencies == [1] * (len(LATENCY_BOUNDS_S) + 1)
    assert counts.latency_s == pytest.approx(0.99 * (sum(LATENCY_BOUNDS_S) + 7))


async def test_batches_are_confirmed_in_parts_and_together(autojump_clock: MockClock) -> None:
    meter = TrafficMeter(WriteLatencies())
    meter.mark(0)
    await trio.sleep(0.15)
    meter.mark(3)
    await trio.sleep(0.04)
    meter.confirmed(2, [1, 1])  # two of three
    assert filled(meter.take().latencies) == {7: 2}
    meter.mark(4)
    meter.confirmed(5, [1, 1, 1])  # the third, the one of the second batch, one of the last batch
    assert filled(meter.take().latencies) == {7: 1, 5: 1, 0: 1}
    await trio.sleep(2)
    meter.confirmed(6, [1])
    assert filled(meter.take().latencies) == {9: 1}


async def test_an_idle_log_has_no_counts(autojump_clock: MockClock) -> None:
    meter = TrafficMeter(WriteLatencies())
    assert meter.take() is NO_TRAFFIC
    meter.read(0)
    assert meter.take() is NO_TRAFFIC
    meter.mark(0)
    meter.confirmed(1, [1])
    meter.read(3)
    meter.read(4)
    counts = meter.take()
    assert (counts.entries, counts.entries_read) == (1, 7)
    assert meter.take() is NO_TRAFFIC
    assert Traffic() == NO_TRAFFIC  # nobody has changed it


def test_the_quantiles_are_those_of_the_last_whole_window() -> None:
    host = WriteLatencies()
    assert isnan(host.quantile(0.5, 0.0))
    host.note(0.001, 98, 1.0)
    host.note(0.5, 2, 2.0)
    assert isnan(host.quantile(0.5, 3.0))  # the window is not over
    at_s = WINDOW_S + 1
    assert host.quantile(0.0, at_s) == 0.001
    assert host.quantile(0.5, at_s) == pytest.approx(0.001, rel=0.1)
    assert host.quantile(0.98, at_s) == pytest.approx(0.001, rel=0.1)
    assert host.quantile(0.99, at_s) == pytest.approx(0.5, rel=0.1)
    assert host.quantile(1.0, at_s) == 0.5
    host.note(3.0, 1, at_s)
    assert host.quantile(1.0, at_s) == 0.5
    assert host.quantile(1.0, 2 * WINDOW_S) == 3.0
    assert isnan(host.quantile(1.0, 3 * WINDOW_S))
    assert host.entries == 101
    assert host.latency_s == pytest.approx(0.098 + 1 + 3)


def test_a_window_without_appends_is_empty() -> None:
    host = WriteLatencies()
    host.note(0.001, 1, 1.0)
    assert host.quantile(1.0, 2 * WINDOW_S - 1) == 0.001
    host = WriteLatencies()
    host.note(0.001, 1, 1.0)
    assert isnan(host.quantile(1.0, 2 * WINDOW_S))
    host = WriteLatencies()
    host.note(9999.0, 1, 1.0)  # above all bounds
    assert host.quantile(0.5, WINDOW_S) == 9999.0


async def appended(log: ManagedLedger, count: int) -> Traffic:
    await settle(send(log, range(count)))
    return log.traffic.take()


def test_a_log_counts_what_is_confirmed_and_read() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            assert log.traffic.take() is NO_TRAFFIC
            counts = await appended(log, 3)
            assert counts.entries == sum(counts.latencies) == sum(counts.sizes) == 3
            assert counts.bytes == log.size_bytes
            assert 0 < counts.latency_s < 3
            await log.read(log.before_first, max_entries=2, max_bytes=1 << 20)
            assert log.traffic.take().entries_read == 2

    play(scenario)


def test_a_latency_begins_with_the_append_also_across_a_rollover() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            old = log.current_ledger_id
            held = host.link.hold_next("create")
            log.roll()
            await held.caught.wait()
            assert await appended(log, 1)  # the old ledger still takes entries: its first batch
            await trio.sleep(5)
            held.let_go()
            await until(lambda: log.current_ledger_id != old)
            # The first batch of the new ledger is another one than the first of the old ledger.
            counts = await appended(log, 1)
            assert counts.latency_s < 1

    play(scenario)


def test_each_entry_that_waits_for_a_ledger_has_its_own_time() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            for bookie in list(world.bookies)[:2]:
                world.network.block("a", bookie)
            sent = send(log, range(1))
            log.roll()
            await until(lambda: log.state.name == "SWITCHING")
            send(log, range(1, 2), sent)
            await trio.sleep(3)
            send(log, range(2, 3), sent)
            last_s = trio.current_time()
            for bookie in list(world.bookies)[:2]:
                world.network.unblock("a", bookie)
            await settle(sent)
            assert not sent.failed
            # If the last one had the time of the one before it, there would be 3 seconds more.
            all_waited_s = 3 * (trio.current_time() - last_s)
            assert 6 <= log.traffic.take().latency_s < 6.5 + all_waited_s

    play(scenario)
