"""Our client as a load, behind a pipe; `java/Load.java` does the same with Apache's.

    python -m bench.peers.load

A line on standard input is a command, `NAME key=value ...`; a line on standard output is its
answer, `ok key=value ...` or `error 0 WHY`.  Lists have commas.  Each command says by `on` which
client it is for.

    connect at [explicit_lac_s] [blocks]  a client; `on` is the name that it gets
            at=HOST:PORT/ROOT; 0: readers are never told of the LAC but by later entries;
            blocks=0: entries travel one by one, also where bookies take blocks (not in Java)
    append  copies size ledgers window warm_s seconds       -> entries seconds total
            so many entries under way, to ledgers in turn; counted are those confirmed
            after the warm-up, which goes once around at least, and in total
    paced   copies size rate warm_s seconds                 -> p50_ms p99_ms max_ms
            one entry every 1/rate seconds, whatever became of those before; the time
            counts from when it was due
    fill    copies size ledgers entries window close        -> ledgers seconds
            so many entries to each, in turn; close=0 leaves the ledgers open
    read    ledgers mb_per_s seconds                        -> bytes seconds
            one after the other to the end; mb_per_s=0: as fast as it goes; seconds=0: once,
            else again and again for so long
    recover ledgers                                         -> ms entries
            open with recovery, one after the other
    delete  ledgers
"""

import math
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import cycle
from random import Random

import trio

from bench.peers.ticker import Ticker
from daybook.clients import ledgers
from daybook.wire import process

_CREATED_AT_ONCE = 32
_PATIENCE_S = 30.0  # the machine may have more to do than this
_CLOCK_EVERY = 64  # entries between two looks at the clock
_QUORUMS = {3: (3, 3, 2), 1: (1, 1, 1)}  # by number of copies


def words(values: Mapping[str, object]) -> list[str]:
    """Encode arguments as commands and answers have them: numbers, words, lists of them."""
    return [f"{name}={str(value).strip('[]').replace(' ', '')}" for name, value in values.items()]


class Given:
    """The arguments of a command, by name."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = dict(word.split("=", 1) for word in words)

    def text(self, name: str) -> str:
        return self._words[name]

    def number(self, name: str) -> int:
        return int(self._words[name])

    def real(self, name: str, default: float | None = None) -> float:
        if default is not None and name not in self._words:
            return default
        return float(self._words[name])

    def ledgers(self) -> list[int]:
        return [int(ledger_id) for ledger_id in self._words["ledgers"].split(",")]


class Writing:
    """Entries to some ledgers in turn, so many of them under way."""

    def __init__(self, writers: Sequence[ledgers.Writer], given: Given) -> None:
        self._writers = writers
        self._turns = cycle(writers)
        self._data = Random(1).randbytes(given.number("size"))
        self._window = given.number("window")
        self._under_way: deque[tuple[ledgers.Writer, int]] = deque()

    async def append(self) -> None:
        under_way = self._under_way
        if len(under_way) >= self._window:
            writer, entry_id = under_way.popleft()
            if writer.last_add_confirmed < entry_id:
                await writer.wait_confirmed(entry_id)
        writer = next(self._turns)
        under_way.append((writer, await writer.append_soon(self._data)))

    async def append_for(self, seconds: float) -> tuple[int, float]:
        """Append for so long; return how many entries were confirmed, and the time."""
        started, before = trio.current_time(), self.confirmed
        while trio.current_time() < started + seconds:
            for _ in range(_CLOCK_EVERY):
                await self.append()
        return self.confirmed - before, trio.current_time() - started

    @property
    def confirmed(self) -> int:
        return sum(writer.last_add_confirmed + 1 for writer in self._writers)

    async def flush(self) -> None:
        for writer in self._writers:
            await writer.flush()


async def create(client: ledgers.Client, count: int, given: Given) -> list[ledgers.Writer]:
    ensemble, write_quorum, ack_quorum = _QUORUMS[given.number("copies")]
    made: list[ledgers.Writer] = []
    room = trio.CapacityLimiter(_CREATED_AT_ONCE)

    async def one() -> None:
        async with room:
            made.append(
                await client.create(
                    ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
                )
            )

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return made


async def append(client: ledgers.Client, given: Given) -> dict[str, object]:
    writing = Writing(await create(client, given.number("ledgers"), given), given)
    process.settle()  # so the collector does not go through thousands of writers again and again
    for _ in range(given.number("ledgers")):
        await writing.append()
    await writing.append_for(given.real("warm_s"))
    entries, seconds = await writing.append_for(given.real("seconds"))
    await writing.flush()
    return {"entries": entries, "seconds": seconds, "total": writing.confirmed}


async def fill(client: ledgers.Client, given: Given) -> dict[str, object]:
    writers = await create(client, given.number("ledgers"), given)
    writing = Writing(writers, given)
    started = trio.current_time()
    for _ in range(given.number("entries") * len(writers)):
        await writing.append()
    await writing.flush()
    took = trio.current_time() - started
    if given.number("close"):
        for writer in writers:
            await writer.close()
    return {"ledgers": [writer.ledger_id for writer in writers], "seconds": took}


async def paced(client: ledgers.Client, given: Given) -> dict[str, object]:
    (writer,) = await create(client, 1, given)
    data = Random(1).randbytes(given.number("size"))
    rate = given.real("rate")
    warm = int(rate * given.real("warm_s"))
    count = warm + int(rate * given.real("seconds"))
    due: list[float] = []
    took: list[float] = []

    async def watch(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        while len(took) < count:
            if len(took) > writer.last_add_pushed:
                await more.wait()
                continue
            await writer.wait_confirmed(len(took))
            now = trio.current_time()
            took.extend(now - due[i] for i in range(len(took), writer.last_add_confirmed + 1))

    more = trio.Event()
    start = trio.current_time()
    with Ticker(1 / rate) as ticker:
        async with trio.open_nursery() as nursery:
            await nursery.start(watch)
            while len(due) < count:
                for _ in range(min(await ticker.wait(), count - len(due))):
                    due.append(start + (len(due) + 1) / rate)
                    await writer.append_soon(data)
                more.set()
                more = trio.Event()
    measured = sorted(took[warm:])
    return {
        "p50_ms": share(measured, 0.5) * 1e3,
        "p99_ms": share(measured, 0.99) * 1e3,
        "max_ms": share(measured, 1) * 1e3,
    }


def share(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


async def read(client: ledgers.Client, given: Given) -> dict[str, object]:
    bytes_per_s, seconds = given.real("mb_per_s") * 1e6, given.real("seconds")
    started, size = trio.current_time(), 0
    while True:
        for ledger_id in given.ledgers():
            reader = await client.open(ledger_id, recover=False)
            stream = reader.read()
            while batch := await stream.next_batch():
                for entry in batch:
                    size += len(entry.data)
                spent = trio.current_time() - started
                if seconds and spent >= seconds:
                    return {"bytes": size, "seconds": spent}
                if bytes_per_s:
                    await trio.sleep_until(started + size / bytes_per_s)
        if not seconds:
            return {"bytes": size, "seconds": trio.current_time() - started}


async def recover(client: ledgers.Client, given: Given) -> dict[str, object]:
    took: list[float] = []
    entries: list[int] = []
    for ledger_id in given.ledgers():
        started = trio.current_time()
        reader = await client.open(ledger_id, recover=True)
        took.append((trio.current_time() - started) * 1e3)
        entries.append(reader.last_add_confirmed + 1)
    return {"ms": took, "entries": entries}


async def delete(client: ledgers.Client, given: Given) -> dict[str, object]:
    for ledger_id in given.ledgers():
        await client.delete(ledger_id)
    return {}


_COMMANDS = {
    "append": append,
    "paced": paced,
    "fill": fill,
    "read": read,
    "recover": recover,
    "delete": delete,
}


async def connect(stack: AsyncExitStack, given: Given) -> ledgers.Client:
    usual = ledgers.LedgerLimits()
    pause_s = given.real("explicit_lac_s", usual.explicit_lac_s) or math.inf
    patient = replace(
        usual.bookies,
        add_timeout_s=_PATIENCE_S,
        read_timeout_s=_PATIENCE_S,
        blocks=given.real("blocks", 1) > 0,
    )
    limits = ledgers.Limits(ledger=replace(usual, explicit_lac_s=pause_s, bookies=patient))
    return await stack.enter_async_context(
        ledgers.connect(f"zk://{given.text('at')}", limits=limits)
    )


async def main() -> None:
    process.prepare()
    clients: dict[str, ledgers.Client] = {}
    async with AsyncExitStack() as stack:
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            command, *rest = line.split()
            given = Given(rest)
            try:
                if command == "connect":
                    clients[given.text("on")] = await connect(stack, given)
                    found: Mapping[str, object] = {}
                else:
                    found = await _COMMANDS[command](clients[given.text("on")], given)
            except Exception as error:
                print("error 0", type(error).__name__, " ".join(str(error).split()), flush=True)
            else:
                print("ok", *words(found), flush=True)


if __name__ == "__main__":
    trio.run(main)
