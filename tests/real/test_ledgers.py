"""Ledgers from Python on real processes: the examples, a killed writer, bookies that leave."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from daybook.clients import ledgers
from daybook.clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ledgers.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ADDRESS = "zk://localhost:2181/ledgers"
PATIENCE_S = 60
WRITER = """
import sys
from daybook.clients import ledgers

with ledgers.blocking.connect(sys.argv[1]) as client:
    writer = client.create(digest="hmac", password=b"pw")
    print(writer.ledger_id, flush=True)
    confirmed = 0
    futures = []
    for number in range(10**9):
        futures.append(writer.append_soon(b"%d" % number * 20))
        if len(futures) == 100:
            confirmed = futures[-1].result()
            futures.clear()
            print(confirmed, flush=True)
"""


def address(cluster: StandaloneProcess) -> str:
    return f"zk://{cluster.zookeeper}/ledgers"


@pytest.fixture(scope="module")
def whole() -> Iterator[StandaloneProcess]:
    """Run a cluster for this module; its last test kills one of the bookies."""
    with StandaloneProcess(bookies=3, brokers=1) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 b'first'\n1 b'0'\n2 b'1'\n"),
        (1, "1000 entries, 2890 bytes\n"),
        (
            2,
            "the ledger ends at 0\nInDoubtError UNKNOWN - open the ledger with recovery:"
            " it says what was kept; go on in a new ledger\n",
        ),
        (
            3,
            "seen 0 b'tick 0'\nseen 1 b'tick 1'\nseen 2 b'tick 2'\nthe ledger was closed\n",
        ),
        (4, ""),
        (5, "[b'zero', b'one']\n"),
        (6, "taken 99 confirmed -1\non disk up to 99\n"),
        (7, "True - the same request may succeed later\n"),
        (8, "ledger 123456789 does not exist - asking again gives the same answer\n"),
    ],
)
def test_each_example_runs_as_it_stands(whole: StandaloneProcess, number: int, shown: str) -> None:
    assert ADDRESS in EXAMPLES[number]
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[number].replace(ADDRESS, address(whole))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, shown), done.stderr


def test_there_are_no_other_examples() -> None:
    assert (len(EXAMPLES), PAGE.count("```")) == (9, 18)


def test_a_killed_writer_loses_nothing_that_it_was_told(whole: StandaloneProcess) -> None:
    with (
        ledgers.blocking.connect(address(whole)) as client,
        subprocess.Popen(
            [sys.executable, "-c", WRITER, address(whole)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        ledger_id = int(process.stdout.readline())
        followed: list[int] = []
        reader = client.open(ledger_id, recover=False, password=b"pw")
        tail = reader.tail(timeout_s=PATIENCE_S)
        thread = threading.Thread(target=lambda: followed.extend(e.entry_id for e in tail))
        thread.start()
        confirmed = -1
        for _ in range(30):
            confirmed = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        confirmed = int((["", *process.stdout.read().split()][-1]) or confirmed)
        process.wait(PATIENCE_S)
        with pytest.raises(ledgers.UnauthorizedError):
            client.open(ledger_id, recover=True)
        recovered = client.open(ledger_id, recover=True, password=b"pw")
        assert recovered.last_add_confirmed >= confirmed >= 2900
        for entry in recovered.read(timeout_s=PATIENCE_S):
            assert entry.data == b"%d" % entry.entry_id * 20
        thread.join(PATIENCE_S)
        assert followed == list(range(recovered.last_add_confirmed + 1))


async def test_ids_of_both_widths_are_listed(whole: StandaloneProcess) -> None:
    async with ledgers.connect(address(whole)) as client:
        ids = [2_000_000_000, (5 << 32) + 1]
        for ledger_id in ids:
            async with await client.create_advanced(ledger_id=ledger_id) as writer:
                await writer.append(0, b"x")
        listed = [ledger_id async for ledger_id in client.list_ledgers()]
        assert sorted(listed) == listed
        assert set(ids) <= set(listed)
        for ledger_id in ids:
            await client.delete(ledger_id)
        listed = [ledger_id async for ledger_id in client.list_ledgers()]
        assert not set(ids) & set(listed)


def test_where_there_is_no_cluster_it_says_so(whole: StandaloneProcess) -> None:
    with pytest.raises(ledgers.ClusterError, match="no bookie has ever started here"):
        ledgers.blocking.connect(f"zk://{whole.zookeeper}/elsewhere")


async def test_a_killed_bookie_is_written_and_read_around(whole: StandaloneProcess) -> None:
    async with ledgers.connect(address(whole)) as client:
        async with await client.create() as writer:
            for number in range(3000):
                if number == 1000:
                    await trio.to_thread.run_sync(whole.local, "kill", "bookie-2")
                await writer.append_soon(b"%d" % number)
            with trio.fail_after(PATIENCE_S):
                await writer.flush()
        reader = await client.open(writer.ledger_id, recover=False)
        with trio.fail_after(PATIENCE_S):
            entries = [entry async for entry in reader.read()]
        assert [entry.data for entry in entries] == [b"%d" % number for number in range(3000)]
