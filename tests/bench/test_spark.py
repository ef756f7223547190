"""The benchmark of Spark beside Kafka: the parts that need neither."""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from struct import pack
from typing import Self

import pytest
import trio
from rich.console import Console
from rich.table import Table

from bench.peers.rows import Demand
from bench.spark import filling
from bench.spark.filling import Stored, stored_in_kafka
from bench.spark.lines import Line, Used, asked, measured, number, processor, share_of
from bench.spark.usage import descendants, used
from daybook.clients.python.protocol.batching import Batch


def _text(table: Table) -> str:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def _line() -> Line:
    line = Line("batch read", "Daybook", "rows/s", rows=500_000)
    line.add(100.0, Used(2.0, {"jvm": 1.5, "workers": 0.5}, waited_s=1.0, others_s=0.5))
    line.add(400.0, Used(2.0, {"jvm": 0.5}, waited_s=0.0, others_s=0.5))
    line.add(250.0, Used(4.0, {"jvm": 1.0, "brokers": 0.3}, waited_s=3.0, others_s=1.0))
    return line


def test_a_line_has_the_median_of_its_turns() -> None:
    line = _line()
    assert line.median == 250.0
    line.add(300.0)
    assert line.median == 275.0


def test_processor_time_is_that_of_a_million_rows() -> None:
    line = _line()
    assert line.used_s_per_million("jvm") == 3.0 / 1.5  # 3 s in three turns of half a million
    assert line.used_s_per_million("brokers") == pytest.approx(0.2)
    assert line.used_s_per_million("kafka") == 0.0


def test_the_tables_show_medians_ranges_and_shares_of_the_time() -> None:
    text = _text(measured([_line()]))
    for cell in ("batch read", "Daybook", "250", "100 - 400", "rows/s", "3"):
        assert f" {cell} " in text
    text = _text(processor([_line(), Line("commit", "Daybook", "ms")]))
    for cell in ("0.200", "2.000", "0.333", "2.53", "0.50", "0.25"):
        assert f" {cell} " in text
    assert "commit" not in text, "it has no rows"


def test_what_was_asked_is_met_or_missed() -> None:
    demands = {
        "read": Demand("of Kafka's", 1.6, at_least=1.5),
        "write": Demand("of Kafka's", 0.5, at_least=0.7),
        "shown": Demand("ms", 1234.0),
    }
    rows = _text(asked(demands)).splitlines()
    (read,) = [row for row in rows if "read: of Kafka's" in row]
    (write,) = [row for row in rows if "write: of Kafka's" in row]
    (shown,) = [row for row in rows if "shown: ms" in row]
    assert "met" in read
    assert ">= 1.5" in read
    assert "MISSED" in write
    assert "1,234" in shown
    assert "met" not in shown.lower()


def test_numbers_are_rounded_for_readers() -> None:
    assert [number(each) for each in (0.456, 99.0, 1234.5, -404.2)] == [
        *("0.46", "99.00", "1,234", "-404"),
    ]


def test_the_share_of_values() -> None:
    values = [float(each) for each in range(199, -1, -1)]
    assert share_of(values, 0.99) == 198.0
    assert share_of(values, 1.0) == 199.0
    assert share_of([7.0], 0.99) == 7.0


_CHILD = """
import subprocess, sys
print(flush=True)
input()
subprocess.run([sys.executable, "-c", "sum(i * i for i in range(3_000_000))"], check=True)
print(flush=True)
input()
"""


def test_processor_time_is_counted_with_that_of_ended_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in descendants(os.getpid())
        with used(lambda: {"workers": [child.pid]}) as found:
            print(file=child.stdin, flush=True)
            child.stdout.readline()
        print(file=child.stdin, flush=True)
    assert found.by_kind["workers"] >= 0.05, "the child itself only waits"
    assert found.took_s >= found.by_kind["workers"] / 2
    assert found.waited_s >= 0


def test_the_batches_in_the_files_of_kafka_are_counted(tmp_path: Path) -> None:
    for partition, sizes in enumerate([(100, 60_000), (7,)]):
        directory = tmp_path / f"history-4-{partition}"
        directory.mkdir()
        batches = [pack(">qi", 0, size) + bytes(size) for size in sizes]
        (directory / "00000000000000000000.log").write_bytes(b"".join(batches) + bytes(50))
    (tmp_path / "history-4-meta").mkdir()
    assert stored_in_kafka(tmp_path, "history-4") == Stored(3, 60_107 + 3 * 12)
    assert str(Stored(10, 1_310_000)) == "1.3 MB in 10 batches of 131.0 KB"


def test_daybook_is_filled_with_full_batches_row_by_row() -> None:
    sent: dict[str, list[Batch]] = {}

    class Producer:
        def __init__(self, topic: str) -> None:
            self.batches = sent.setdefault(topic, [])

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def wait_room(self) -> None:
            pass

        flush = wait_room

        def send_batch_nowait(self, batch: Batch) -> None:
            self.batches.append(batch)

    class Client:
        async def create_producer(self, topic: str) -> Producer:
            return Producer(topic)

    @asynccontextmanager
    async def connect(url: str) -> AsyncGenerator[Client]:
        yield Client()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "connect", connect)
        fill = partial(filling.fill_daybook, "x", "t", partitions=4, rows=1001)
        trio.run(partial(fill, key_of=lambda n: f"{n:04}", value=b"v" * 90, batch_bytes=10_000))
    assert [sum(each.count for each in sent[f"t-partition-{n}"]) for n in range(4)] == [
        251,
        250,
        250,
        250,
    ]
    for batches in sent.values():
        assert all(10_000 <= len(each.body) < 10_200 for each in batches[:-1])
        assert len(batches) == 3
    assert sent["t-partition-1"][0].key == "0001"
    assert sent["t-partition-1"][1].sequence_id == sent["t-partition-1"][0].count
