"""`make demo`, or `python -m examples.flights`: the demo from start to verdict.

It starts a cluster, sends all rows through it, kills a broker meanwhile, and reads the topic with
Spark.  A stream writes totals to a second topic, exactly once, while a broker of that is killed.
The exit code is 0 only if no row was lost, stored twice or out of order, and if all aggregates and
all messages of the second topic agree with pandas.  The picture, Spark's output and all logs are
left in one directory, named at the end.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import click
import trio
from rich.console import Console
from rich.table import Table

from daybook import blocking
from daybook.testing import StandaloneProcess
from examples.flights import chart
from examples.flights.carriers import TARGET
from examples.flights.flights import Flights, load
from examples.flights.pipelines import SparkResult, read_with_spark
from examples.flights.tally import Tally
from examples.flights.traffic import run_traffic
from examples.flights.verdict import failures, table

TOPIC = "flights"
PARTITIONS = 4
TICK_S = 1.0


def kill_owner(cluster: StandaloneProcess, topic: str) -> str:
    """SIGKILL the broker that owns most partitions of `topic`; return its name."""
    owned: dict[str, int] = {}
    with blocking.connect(cluster.service_url) as client:
        for i in range(PARTITIONS):
            url = client.lookup(f"{topic}-partition-{i}")
            owned[url] = owned.get(url, 0) + 1
    url = max(sorted(owned), key=lambda u: owned[u])
    for broker in cluster.ready["brokers"]:
        if broker["service_url"] == url:
            # A broker that was killed before has another process now.
            os.kill(cluster.local("status", broker["name"])["pid"], signal.SIGKILL)
            return str(broker["name"])
    raise LookupError(f"no broker of this cluster has the address {url}")


class Progress:
    """Shows the progress: one live line on a terminal, plain lines in a pipe."""

    def __init__(self, console: Console, tally: Tally) -> None:
        self._console = console
        self._tally = tally
        self._live = console.is_terminal

    async def show(self) -> None:
        before = 0
        while True:
            await trio.sleep(TICK_S)
            tally = self._tally
            rate = (tally.acknowledged - before) / TICK_S
            before = tally.acknowledged
            text = (
                f"{rate:9,.0f}/s   sent {tally.sent:,}   acknowledged {tally.acknowledged:,}   "
                f"delivered {tally.delivered:,}"
            )
            if tally.killed is not None:
                text += f"   ({tally.killed} killed)"
            self._console.print(f"{text:<78}", end="\r" if self._live else "\n")

    def say(self, text: str) -> None:
        """Print a line that the live line does not overwrite."""
        self._console.print(f"{text:<78}")


async def send_and_kill(
    cluster: StandaloneProcess, flights: Flights, tally: Tally, console: Console
) -> None:
    progress = Progress(console, tally)

    async def kill() -> str:
        name = await trio.to_thread.run_sync(kill_owner, cluster, TOPIC)
        progress.say(f"{name} owned most partitions: killed (SIGKILL); another broker takes over")
        return name

    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.show)
        await run_traffic(cluster.service_url, TOPIC, flights, tally, kill)
        nursery.cancel_scope.cancel()
    progress.say("")


def run(
    flights: Flights, directory: Path, console: Console, *, keep: bool
) -> tuple[Tally, SparkResult]:
    """Run the whole demo; all files that it writes are in `directory`."""

    def kill(topic: str) -> str:
        name = kill_owner(cluster, topic)
        console.print(f"{name} owned most partitions of {topic}: killed (SIGKILL)")
        return name

    tally = Tally(len(flights.messages))
    started = time.perf_counter()
    console.print("starting ZooKeeper, 3 bookies and 2 brokers, each a process")
    with StandaloneProcess() as cluster:
        console.print(
            f"ready after {time.perf_counter() - started:.1f} s; each flight is a message"
        )
        try:
            with blocking.connect_admin(cluster.admin_url) as admin:
                admin.create_topic(TOPIC, partitions=PARTITIONS)
                admin.create_topic(TARGET, partitions=PARTITIONS)
                admin.set_topic_deduplication(TOPIC, True)
            trio.run(send_and_kill, cluster, flights, tally, console)
            draw_picture(directory / "rate.svg", tally)
            console.print(
                f"Spark reads {TOPIC} as a batch, then as a stream that writes totals to {TARGET}"
            )
            spark = read_with_spark(cluster, TOPIC, flights, directory, kill)
            if keep:
                wait_for_ctrl_c(cluster, console)
        finally:
            shutil.copytree(cluster.directory / "logs", directory / "logs")
    return tally, spark


def draw_picture(file: Path, tally: Tally) -> None:
    title = f"{tally.acknowledged:,} messages acknowledged, {tally.killed} killed on the way"
    note = f"longest pause of a partition {tally.pause_s:.2f} s, lost {tally.lost}"
    file.write_text(chart.draw(tally.acknowledged_at_s, tally.killed_at_s, title, note))


def wait_for_ctrl_c(cluster: StandaloneProcess, console: Console) -> None:
    console.print(
        f"the cluster is yours until Ctrl-C: topic {TOPIC}\n"
        f"  export DAYBOOK_DIR={cluster.directory}\n"
        f"  python tools/show_zookeeper.py {cluster.zookeeper}"
    )
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("")


def end(number: int, frame: FrameType | None) -> None:
    """End the demo on a signal as Ctrl-C does: the cluster is stopped, too."""
    del frame
    sys.exit(128 + number)


def conclude(tally: Tally, spark: SparkResult, console: Console) -> bool:
    """Print the figures and the verdict; return True if all is well."""
    figures = Table(title="daybook demo", show_header=False)
    for name, value in table(tally, spark):
        figures.add_row(name, value)
    console.print(figures)
    wrong = failures(tally, spark)
    for failure in wrong:
        console.print(f"wrong: {failure}")
    console.print("verdict: " + ("FAILED" if wrong else "all is well"))
    return not wrong


@click.command()
@click.option("--rows", type=click.IntRange(min=10), help="Only the first ROWS rows.")
@click.option("--keep", is_flag=True, help="Leave the cluster running at the end, until Ctrl-C.")
def main(rows: int | None, keep: bool) -> None:
    """Run the demo."""
    signal.signal(signal.SIGTERM, end)
    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    flights = load(rows)
    console.print(f"{len(flights.messages):,} flights that left New York in 2013")
    directory = Path(tempfile.mkdtemp(prefix="daybook-demo-"))
    try:
        tally, spark = run(flights, directory, console, keep=keep)
    finally:
        console.print(f"\nlogs, and what Spark wrote: {directory}")
    good = conclude(tally, spark, console)
    console.print(f"picture: {directory / 'rate.svg'}")
    console.print(f"{time.perf_counter() - started:.0f} s in all")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
