"""Reading: a long ledger, short ones that were written interleaved, and beside a writer."""

import json
import time
from dataclasses import replace
from http.client import HTTPConnection

from bench import limit
from bench.peers.rows import Demand, Row, Sizes, times_java
from bench.peers.sides import BOOKIES, JAVA, MEMORY_BYTES, OURS, Bench, Load, Pair, Side
from bench.peers.watch import cores, forget, settle
from bench.peers.writing import WINDOW_64KB, paced
from tests.harness.processes import is_open, wait_until
from tests.interop.cluster import Bookie

_ENTRY_BYTES = 64 << 10
_SHORT_ENTRY_BYTES = 4096
_INTERLEAVED = 1000
_READ_LEDGERS = 20
_WARM_READS = 2
_KEPT = f"warm, our bookies with read_cache_bytes of {MEMORY_BYTES >> 30} GB"
_DRAIN_MB_S = 200
_HEAD_START_S = 0.5  # the lead of the reader, and the time that it continues behind the writer


def sequential(bench: Bench, sizes: Sizes) -> list[Row]:
    """Read a long ledger in entries of 64 KB: from the disk, and again from memory.

    By default our bookies use little memory of their own, while Apache's leave caching to the page
    cache.  The last row gives our bookies as much memory as Apache's have.
    """
    total = int(2e9 * sizes.scale)
    cold: dict[Pair, float] = {}
    warm: dict[Pair, float] = {}
    notes: list[str] = []
    ledgers = {side: _long_ledger(bench, side, total) for side in Side}
    for pair in sizes.pairs:
        load = bench.load(pair)
        _read(load, ledgers[pair.bookies])  # so that no compiler is busy later
        settle(*bench.clusters)
        forget(load.cluster)
        cold[pair] = _read(load, ledgers[pair.bookies])
        with cores(load) as busy:
            warm[pair] = _read_warm(load, ledgers[pair.bookies])
        if pair in (JAVA, OURS):
            notes.append(f"{'ours' if pair == OURS else 'Java'}: {busy}")
    with bench.own_bookies_with(read_cache_bytes=MEMORY_BYTES):
        load = bench.load(OURS)
        _read(load, ledgers[Side.OWN])
        kept = {JAVA: warm[JAVA], OURS: _read_warm(load, ledgers[Side.OWN])}
    name = f"read {total / 1e9:g} GB in 64 KB entries"
    rows: list[Row] = []
    for what, found, share in (("cold", cold, 0.5), ("warm", warm, 0.4), (_KEPT, kept, 0.4)):
        most = limit.reading_mb_s(_ENTRY_BYTES, total, cold=what == "cold")
        demands = [
            *times_java(found, 2.0),
            Demand("ours / limit", found[OURS] / most, at_least=share),
        ]
        note = "; ".join(notes) if what == "warm" else ""
        rows.append(Row.for_pairs(f"{name}: {what}", "MB/s", found, demands, limit=most, note=note))
    return rows


def _long_ledger(bench: Bench, side: Side, total: int) -> list[int]:
    """Write a long ledger with the client of that side, whichever client reads it."""
    load = bench.load(Pair(side, side))
    return fill(load, size=_ENTRY_BYTES, entries=total // _ENTRY_BYTES, window=WINDOW_64KB)


def fill(
    load: Load,
    *,
    size: int,
    entries: int,
    window: int,
    copies: int = BOOKIES,
    ledgers: int = 1,
    close: bool = True,
) -> list[int]:
    """Write entries to each of some ledgers, in turn; return the ids."""
    answer = load.do(
        "fill",
        copies=copies,
        size=size,
        ledgers=ledgers,
        entries=entries,
        window=window,
        close=int(close),
    )
    return [int(ledger_id) for ledger_id in answer["ledgers"].split(",")]


def _read(load: Load, ledgers: list[int]) -> float:
    """Return MB/s."""
    answer = load.do("read", ledgers=ledgers, mb_per_s=0, seconds=0)
    return int(answer["bytes"]) / float(answer["seconds"]) / 1e6


def _read_warm(load: Load, ledgers: list[int]) -> float:
    return max(_read(load, ledgers) for _ in range(_WARM_READS))


def interleaved(bench: Bench, sizes: Sizes) -> list[Row]:
    """Read some of a thousand ledgers that were written in turn, and some written alone; cold."""
    alone: dict[Pair, float] = {}
    before: dict[Pair, float] = {}
    after: dict[Pair, float] = {}
    for pair in (JAVA, OURS):
        load = bench.load(pair, explicit_lac_s=0)
        single = [_short(load, sizes, 1)[0] for _ in range(_READ_LEDGERS)]
        many = _short(load, sizes, _INTERLEAVED)
        read = many[:: _INTERLEAVED // _READ_LEDGERS]
        alone[pair] = _read_cold(load, single)
        before[pair] = _read_cold(load, read)
        if pair == OURS:
            kept = {*read, *many[::5]}
            earlier = range(min(single))  # the data of other cases count as live, too
            gone = [ledger for ledger in (*earlier, *many) if ledger not in kept]
            load.do("delete", ledgers=gone)
            for bookie in load.cluster.bookies:
                _reclaim(bench, bookie)
            after[pair] = _read_cold(load, read)
    kb = sizes.interleaved_entries * _SHORT_ENTRY_BYTES // 1000
    share = {pair: before[pair] / alone[pair] for pair in before}
    return [
        Row.for_pairs(f"read ledgers of {kb:,} KB in 4 KB entries, written alone", "MB/s", alone),
        Row.for_pairs(
            f"  {_INTERLEAVED:,} written interleaved",
            "MB/s",
            before,
            note=f"of one written alone: Java {share[JAVA]:.2f}, ours {share[OURS]:.2f}",
        ),
        Row.for_pairs(
            "  after reclaiming",
            "MB/s",
            after,
            [Demand("ours / written alone", after[OURS] / alone[OURS], at_least=0.5)],
        ),
    ]


def _short(load: Load, sizes: Sizes, ledgers: int) -> list[int]:
    entries = sizes.interleaved_entries
    return fill(load, size=_SHORT_ENTRY_BYTES, entries=entries, window=2000, ledgers=ledgers)


def _read_cold(load: Load, ledgers: list[int]) -> float:
    _read(load, ledgers)  # so that it is connected
    settle(load.cluster)
    forget(load.cluster)
    return _read(load, ledgers)


def _reclaim(bench: Bench, bookie: Bookie) -> None:
    """Restart the bookie, so that it writes to new segments; drop deleted ledgers, and compact."""
    bookie.kill()
    bookie.start()
    port = bench.http_ports[bookie.bookie_id]
    wait_until(lambda: is_open(port), f"{bookie.name} can be asked")
    before = _ask(port, "GET", "gc_details")
    _ask(port, "PUT", "gc")
    wait_until(lambda: _ask(port, "GET", "gc_details")["collections"] == 1, "a collection")
    wait_until(lambda: _ask(port, "GET", "gc")["is_in_force_gc"] == "false", "room is made")
    after = _ask(port, "GET", "gc_details")
    assert after["bytes_rewritten"] != before["bytes_rewritten"], after
    assert not after["drops_failed"], after


def _ask(port: int, method: str, what: str) -> dict[str, object]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, f"/api/v1/bookie/{what}")
        answer: dict[str, object] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def draining(bench: Bench, sizes: Sizes) -> list[Row]:
    """Measure appends at a fixed rate, without and with a reader of old entries.

    The measurement lasts as long as the reading: each entry is read once, from the disk.
    """
    drained_s = max(
        5e9 * sizes.scale / (_DRAIN_MB_S * 1e6), _HEAD_START_S + sizes.warm_s + sizes.measure_s
    )
    total = int(drained_s * _DRAIN_MB_S * 1e6)
    paced_sizes = replace(sizes, measure_s=drained_s - _HEAD_START_S - sizes.warm_s)
    without: dict[Pair, float] = {}
    beside: dict[Pair, float] = {}
    speed: dict[Pair, float] = {}
    for pair in (JAVA, OURS):
        ledgers = _long_ledger(bench, pair.bookies, total)
        writer, reader = bench.load(pair), bench.load(pair, other=True)
        _read(reader, ledgers)
        settle(writer.cluster)
        without[pair] = paced(writer, paced_sizes)[1]
        forget(writer.cluster)
        reader.tell("read", ledgers=ledgers, mb_per_s=_DRAIN_MB_S, seconds=drained_s)
        time.sleep(_HEAD_START_S / 5)
        beside[pair] = paced(writer, paced_sizes)[1]
        answer = reader.answer()
        speed[pair] = int(answer["bytes"]) / float(answer["seconds"]) / 1e6
    ratio = beside[OURS] / without[OURS]
    name = f"append p99 while {total / 1e9:g} GB are drained at {_DRAIN_MB_S} MB/s"
    return [
        Row.for_pairs("append p99 without a reader", "ms", without),
        Row.for_pairs(name, "ms", beside, [Demand("with / without", ratio, at_most=2.0)]),
        Row.for_pairs(
            "  the reader had", "MB/s", speed, [Demand("ours", speed[OURS], at_least=190)]
        ),
    ]
