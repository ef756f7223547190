"""`make demo`: a cluster, all rows through it, a broker killed, Spark, and the verdict.

Exits with 0 only if nothing was lost or out of order and every aggregate agrees with pandas.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import click
import trio
from rich.console import Console
from rich.table import Table

from clients.cli.demo import chart
from clients.cli.demo.flights import Flights, load
from clients.cli.demo.pipelines import SparkResult, read_with_spark
from clients.cli.demo.tally import Tally
from clients.cli.demo.traffic import run_traffic
from clients.python import blocking
from clients.testing.standalone import StandaloneProcess

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
            os.kill(broker["pid"], signal.SIGKILL)
            return str(broker["name"])
    raise LookupError(f"no broker of this cluster has the address {url}")


class Progress:
    """A live line on a terminal, plain lines in a pipe."""

    def __init__(self, console: Console, tally: Tally) -> None:
        self._console = console
        self._tally = tally

    async def show(self) -> None:
        before = 0
        while True:
            await trio.sleep(TICK_S)
            t = self._tally
            rate = (t.acknowledged - before) / TICK_S
            before = t.acknowledged
            text = (
                f"{rate:9,.0f}/s   sent {t.sent:,}   acknowledged {t.acknowledged:,}   "
                f"delivered {t.delivered:,}"
            )
            if t.killed_at_s is not None:
                text += "   (broker killed)"
            self._console.print(text, end="\r" if self._console.is_terminal else "\n")


async def traffic(
    cluster: StandaloneProcess, flights: Flights, tally: Tally, console: Console
) -> None:
    async with trio.open_nursery() as nursery:

        async def kill() -> None:
            name = await trio.to_thread.run_sync(kill_owner, cluster, TOPIC)
            console.print(f"\n{name} killed (SIGKILL), it owned most partitions")

        nursery.start_soon(Progress(console, tally).show)
        await run_traffic(
            cluster.service_url,
            TOPIC,
            flights,
            tally,
            lambda: nursery.start_soon(kill),
        )
        nursery.cancel_scope.cancel()


def report(tally: Tally, spark: SparkResult, picture: Path, console: Console) -> bool:
    table = Table(title="daybook demo", show_header=False)
    pause = tally.longest_pause_s()
    for name, value in [
        ("sent", f"{tally.sent:,}"),
        ("acknowledged", f"{tally.acknowledged:,}"),
        ("delivered", f"{tally.delivered:,}"),
        ("lost", f"{tally.lost:,}"),
        ("out of order", f"{tally.out_of_order:,}"),
        (
            "duplicated",
            f"{tally.duplicated:,} (at-least-once: what the dead broker had not answered is sent "
            "again, what was not acknowledged is delivered again)",
        ),
        ("longest pause at the kill", f"{pause:.2f} s without an acknowledgement"),
        ("Spark batch", f"{spark.rows:,} rows in {spark.batch_s:.1f} s"),
        (
            "Spark stream",
            f"{spark.stream_rows:,} rows in {spark.stream_s:.1f} s, "
            f"restarted {spark.restarts} time from its checkpoint",
        ),
        ("Spark against pandas", "equal" if not spark.differences else "DIFFERENT"),
    ]:
        table.add_row(name, value)
    console.print(table)
    for difference in spark.differences[:10]:
        console.print(difference)
    good = tally.complete and not tally.lost and not tally.out_of_order and not spark.differences
    console.print(f"picture: {picture}")
    console.print("verdict: " + ("all is well" if good else "FAILED"))
    return good


@click.command()
@click.option("--rows", type=int, default=None, help="Only the first ROWS rows.")
def main(rows: int | None) -> None:
    """Run the demo."""
    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    flights = load(rows)
    console.print(f"{len(flights.messages):,} flights; starting ZooKeeper, 3 bookies, 2 brokers")
    cluster = StandaloneProcess()
    output = Path(tempfile.mkdtemp(prefix="daybook-demo-"))
    try:
        console.print(f"ready after {time.perf_counter() - started:.1f} s")
        with blocking.connect_admin(cluster.admin_url) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        tally = Tally(len(flights.messages))
        trio.run(traffic, cluster, flights, tally, console)
        picture = output / "rate.svg"
        picture.write_text(
            chart.draw(
                tally.acknowledged_at_s,
                tally.killed_at_s,
                f"{tally.acknowledged:,} messages through a killed broker",
                f"longest pause {tally.longest_pause_s():.2f} s, lost {tally.lost}",
            )
        )
        console.print("\nSpark reads the topic")
        spark = read_with_spark(cluster.service_url, TOPIC, flights, output)
    finally:
        cluster.stop()
    good = report(tally, spark, picture, console)
    console.print(f"{time.perf_counter() - started:.0f} s in all")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
