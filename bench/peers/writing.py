"""Appending: as fast as it goes, at a fixed rate, and to many ledgers."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench import limit
from bench.peers.rows import Demand, Row, Sizes, times_java
from bench.peers.sides import BOOKIES, JAVA, JAVA_ON_OURS, OURS, Bench, Load, Pair
from bench.peers.watch import Cores, cores, memory_mb, settle

RATE = 1000  # entries a second
WINDOW = 5000  # entries under way, if they are small
WINDOW_64KB = 100
_SMALL_BYTES = 16 << 10
_CHUNK_BYTES = 128 << 10  # in which the relay takes small entries


def append_1kb(bench: Bench, sizes: Sizes) -> list[Row]:
    found, blocks, note = _append_all(bench, sizes, 1024, WINDOW)
    return [
        _with_limit("append 1 KB, plain v2", sizes, found, 2.0, 1024, None, note),
        _with_limit("append 1 KB, in blocks", sizes, blocks, 4.0, 1024, None, note),
    ]


def append_64kb(bench: Bench, sizes: Sizes) -> list[Row]:
    found, _, note = _append_all(bench, sizes, 64 << 10, WINDOW_64KB)
    return [_with_limit("append 64 KB", sizes, found, 5.0, 64 << 10, 0.6, note)]


def append_100b(bench: Bench, sizes: Sizes) -> list[Row]:
    found, blocks, note = _append_all(bench, sizes, 100, WINDOW)
    return [
        Row.for_pairs(name, "entries/s", rates, times_java(rates, wanted), note=note)
        for name, rates, wanted in (
            ("append 100 B, plain v2", found, 1.0),
            ("append 100 B, in blocks", blocks, 3.0),
        )
    ]


def _append_all(
    bench: Bench, sizes: Sizes, size: int, window: int
) -> tuple[dict[Pair, float], dict[Pair, float], str]:
    """Return entries a second in the median round, for each pair, and notes.

    The pairs take turns.  The Java pair and ours in blocks come with them; entries of 64 KB are not
    worth a block, so both are the same there.
    """
    plain: dict[Pair, list[Appended]] = {pair: [] for pair in sizes.pairs}
    blocks: list[Appended] = []
    small = size <= _SMALL_BYTES
    for _ in range(sizes.rounds):
        for pair, appended in plain.items():
            load = bench.load(pair, blocks=0) if small and pair == OURS else bench.load(pair)
            settle(*bench.clusters)
            appended.append(append(load, sizes, size, window))
        if small:
            settle(*bench.clusters)
            blocks.append(append(bench.load(OURS), sizes, size, window))
    found = {pair: _middle(appended).per_s for pair, appended in plain.items()}
    in_blocks = {JAVA: found[JAVA], OURS: _middle(blocks or plain[OURS]).per_s}
    told = {"Java": plain[JAVA], "ours": plain[OURS], "ours in blocks": blocks}
    notes = [f"{who}: {_rounds(appended)}" for who, appended in told.items() if appended]
    return found, in_blocks, "; ".join(notes)


@dataclass(frozen=True, slots=True)
class Appended:
    per_s: float
    total: int
    busy: Cores

    def us(self, kind: str) -> float:
        """Return the processor time of an entry."""
        return self.busy.us_of_each(kind, self.total)

    def __str__(self) -> str:
        each = f"client {self.us('client'):.1f} us, bookies {self.us('bookies'):.1f} us an entry"
        return f"{each}; {self.busy}"


def _middle(rounds: Sequence[Appended]) -> Appended:
    return sorted(rounds, key=lambda one: one.per_s)[len(rounds) // 2]


def _rounds(rounds: Sequence[Appended]) -> str:
    return f"{', '.join(f'{one.per_s:,.0f}' for one in rounds)}/s; {_middle(rounds)}"


def append(
    load: Load, sizes: Sizes, size: int, window: int, *, copies: int = BOOKIES, ledgers: int = 1
) -> Appended:
    with cores(load) as busy:
        answer = load.do(
            "append",
            copies=copies,
            size=size,
            ledgers=ledgers,
            window=window,
            warm_s=sizes.warm_s,
            seconds=sizes.measure_s,
        )
    rate = int(answer["entries"]) / float(answer["seconds"])
    return Appended(rate, int(answer["total"]), busy)


def _with_limit(
    name: str,
    sizes: Sizes,
    found: dict[Pair, float],
    wanted: float,
    size: int,
    share: float | None,
    note: str,
) -> Row:
    """Convert to MB/s, and add the relay that writes three files."""
    chunk_bytes = size if size > _SMALL_BYTES else _CHUNK_BYTES
    most = limit.writing_mb_s(chunk_bytes, sizes.relayed_bytes)
    speed = {pair: rate * size / 1e6 for pair, rate in found.items()}
    demands = times_java(found, wanted)
    demands.append(Demand("ours / limit", speed[OURS] / most, at_least=share))
    rates = ", ".join(f"{found[pair]:,.0f}" for pair in (JAVA, OURS))
    return Row.for_pairs(
        name, "MB/s", speed, demands, limit=most, note=f"entries/s: {rates}; {note}"
    )


def latency(bench: Bench, sizes: Sizes) -> list[Row]:
    """Append 1 KB entries at a fixed rate; each time counts from when the entry was due."""
    halves: dict[Pair, list[float]] = {pair: [] for pair in sizes.pairs}
    tails: dict[Pair, list[float]] = {pair: [] for pair in sizes.pairs}
    least: list[tuple[float, float]] = []
    for _ in range(sizes.rounds):
        for pair in sizes.pairs:
            load = bench.load(pair)
            settle(*bench.clusters)
            half, tail = paced(load, sizes)
            halves[pair].append(half)
            tails[pair].append(tail)
        least.append(limit.answered_ms(RATE, sizes.measure_s))
    note = f"one sync of 4 KB: {limit.sync_ms():.2f} ms"
    return [
        _latency_row("p50", halves, 1.0, median(half for half, _ in least), note),
        _latency_row("p99", tails, 4.0, median(tail for _, tail in least), ""),
    ]


def paced(load: Load, sizes: Sizes) -> tuple[float, float]:
    """Return the median and the 99th percentile in milliseconds."""
    answer = load.do(
        "paced",
        copies=BOOKIES,
        size=1024,
        ledgers=1,
        rate=RATE,
        warm_s=sizes.warm_s,
        seconds=sizes.measure_s,
    )
    return float(answer["p50_ms"]), float(answer["p99_ms"])


def _latency_row(
    which: str, rounds: dict[Pair, list[float]], most_ms: float, least_ms: float, note: str
) -> Row:
    """Compare with three plain processes that write what they get and answer."""
    found = {pair: median(values) for pair, values in rounds.items()}
    demands = [
        Demand("ours", found[OURS], at_most=most_ms),
        Demand("ours / Java", found[OURS] / found[JAVA], at_most=1.0),
    ]
    name = f"{RATE:,} appends/s of 1 KB: {which}"
    return Row.for_pairs(name, "ms", found, demands, limit=least_ms, note=note)


def many_ledgers(bench: Bench, sizes: Sizes) -> list[Row]:
    """Append to one ledger, then to many in turn, on one bookie.

    Both use plain v2, and no explicit LAC.
    """
    single: dict[Pair, float] = {}
    many: dict[Pair, float] = {}
    memory: dict[Pair, float] = {}
    before: dict[Pair, float] = {}  # its memory, with one ledger
    share: dict[Pair, float] = {}  # the share of the bookie's processor time
    notes: list[str] = []
    for pair in (JAVA, OURS, JAVA_ON_OURS):
        with bench.one_bookie(pair.bookies) as cluster:
            plain: dict[str, object] = {"explicit_lac_s": 0}
            if pair == OURS:
                plain["blocks"] = 0
            load = bench.load(pair, cluster, other=False, **plain)
            one = append(load, sizes, 1024, WINDOW, copies=1)
            settle(cluster)
            before[pair] = memory_mb(cluster)
            several = append(load, sizes, 1024, WINDOW, copies=1, ledgers=sizes.ledgers)
            memory[pair] = memory_mb(cluster)
        single[pair], many[pair] = one.per_s, several.per_s
        share[pair] = several.us("bookies") / one.us("bookies")
        who = {JAVA: "Java", OURS: "ours", JAVA_ON_OURS: "Java on ours"}[pair]
        notes.append(f"{who}: {one}; in turn: {several}")
    name = f"{sizes.ledgers:,} open ledgers on one bookie"
    demands = [
        Demand("ours / one ledger", many[OURS] / single[OURS], at_least=0.7),
        Demand("Java / one ledger", many[JAVA] / single[JAVA]),
        Demand("Java on our bookie / one ledger", many[JAVA_ON_OURS] / single[JAVA_ON_OURS]),
        Demand("our bookie's time for an entry / one ledger", share[OURS]),
    ]
    return [
        Row.for_pairs("one ledger on one bookie, 1 KB", "entries/s", single, note="; ".join(notes)),
        Row.for_pairs(f"{name}, in turn", "entries/s", many, demands),
        Row.for_pairs(
            f"{name}: its memory",
            "MB",
            memory,
            note=f"with one: Java {before[JAVA]:.0f}, ours {before[OURS]:.0f}",
        ),
    ]
