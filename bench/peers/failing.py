"""After a failure: a ledger whose writer is gone, a bookie that was killed."""

import time

from bench.peers.reading import fill
from bench.peers.rows import Demand, Row, Sizes
from bench.peers.sides import JAVA, OURS, Bench, Load, Pair
from bench.peers.watch import forget, settle
from bench.peers.writing import WINDOW, WINDOW_64KB
from daybook.wire.messages.bookie import ReadAnswer, Status, encode_read
from tests.harness.processes import PATIENCE_S
from tests.interop.cluster import Bookie, ask

_RECOVERED = 20
_TAIL_ENTRIES = 90_000
_LOOK_S = 0.01


def recovery(bench: Bench, sizes: Sizes) -> list[Row]:
    """Open, with recovery, ledgers that another client has left open."""
    short: dict[Pair, float] = {}
    long: dict[Pair, float] = {}
    slowest: dict[Pair, float] = {}
    for pair in (JAVA, OURS):
        writer = bench.load(pair, explicit_lac_s=0)
        other = bench.load(pair, other=True)
        other.do("recover", ledgers=_leave(writer, _RECOVERED, 1))  # a warm-up
        settle(writer.cluster)
        answer = other.do("recover", ledgers=_leave(writer, _RECOVERED, 1))
        took = sorted(map(float, answer["ms"].split(",")))
        short[pair], slowest[pair] = took[len(took) // 2], took[-1]
        answer = other.do("recover", ledgers=_leave(writer, 1, sizes.recovered_entries))
        assert int(answer["entries"]) == sizes.recovered_entries, answer
        long[pair] = float(answer["ms"])
    asked = [Demand("ours", short[OURS], at_most=100)]
    return [
        Row.for_pairs("recovery of a ledger with one entry: median", "ms", short, asked),
        Row.for_pairs(
            "  the slowest of 20", "ms", slowest, [Demand("ours", slowest[OURS], at_most=100)]
        ),
        Row.for_pairs(
            f"  with {sizes.recovered_entries:,} entries of 1 KB, just written",
            "ms",
            long,
            [Demand("ours", long[OURS], at_most=2000)],
        ),
    ]


def _leave(load: Load, ledgers: int, entries: int) -> list[int]:
    return fill(
        load, size=1024, entries=entries, window=ledgers * entries, ledgers=ledgers, close=False
    )


def restart(bench: Bench, sizes: Sizes) -> list[Row]:
    """Measure the restart of a killed bookie until it returns the last entry that it had stored.

    The page cache holds nothing of the bookie's files at the start.
    """
    total = int(10e9 * sizes.scale)
    took: dict[Pair, float] = {}
    for pair in (JAVA, OURS):
        with bench.one_bookie(pair.bookies) as cluster:
            load = bench.load(pair, cluster)
            entries = total // (64 << 10)
            fill(load, size=64 << 10, entries=entries, window=WINDOW_64KB, copies=1)
            (last,) = fill(load, size=1024, entries=_TAIL_ENTRIES, window=WINDOW, copies=1)
            (bookie,) = cluster.bookies
            bookie.kill()
            forget(cluster)
            started = time.monotonic()
            bookie.start()
            _wait_read(bookie, last, _TAIL_ENTRIES - 1)
            took[pair] = time.monotonic() - started
    name = f"a bookie with {total / 1e9:g} GB after kill -9: ready to serve"
    return [Row.for_pairs(name, "s", took, [Demand("ours", took[OURS], at_most=3.0)])]


def _wait_read(bookie: Bookie, ledger_id: int, entry_id: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            (answer,) = ask(bookie, encode_read(ledger_id, entry_id))
        except OSError:
            time.sleep(_LOOK_S)
            continue
        assert isinstance(answer, ReadAnswer), answer
        if answer.status == Status.OK:
            return
    raise TimeoutError(f"{bookie.name} does not serve")
