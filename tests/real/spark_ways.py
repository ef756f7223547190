"""Spark in other shapes than one process: run by hand, as each needs minutes.

    python -m tests.real.spark_ways cluster      a Spark cluster of two workers copies a topic
    python -m tests.real.spark_ways declarative  `spark-pipelines` runs the example of the guide
    python -m tests.real.spark_ways connect      Spark Connect: a client without a JVM
    python -m tests.real.spark_ways sail         Sail: a Spark without a JVM

`declarative` and `connect` need `pip install 'pyspark[connect,pipelines]'`, `sail` needs
`pip install pysail`.  Each part starts a standalone cluster of Daybook, fills a topic, and compares
what comes out with it.  DAYBOOK_SERVICE_URL and DAYBOOK_ADMIN_URL name a cluster to use instead.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex

import pyspark

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess

COUNT = 3000
PATIENCE_S = 900.0
SERVICE, ADMIN = "pulsar://localhost:6650", "http://localhost:8080"  # as the guide has them
DOCS = Path(__file__).parents[2] / "docs"
HOME = Path(pyspark.__file__).parent
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(arguments: list[str]) -> None:
    parts: dict[str, Callable[[Daybook, Path], None]] = {
        "cluster": cluster,
        "declarative": declarative,
        "connect": connect,
        "sail": sail,
    }
    if not arguments or not set(arguments) <= set(parts):
        sys.exit(f"usage: python -m tests.real.spark_ways {' '.join(parts)}")
    with ExitStack() as stack:
        if "DAYBOOK_SERVICE_URL" in os.environ:
            daybook = Daybook(os.environ["DAYBOOK_SERVICE_URL"], os.environ["DAYBOOK_ADMIN_URL"])
        else:
            running = stack.enter_context(StandaloneProcess())
            daybook = Daybook(running.service_url, running.admin_url)
        for name in arguments:
            with tempfile.TemporaryDirectory() as directory:
                began = time.monotonic()
                parts[name](daybook, Path(directory))
                print(f"{name}: passed in {time.monotonic() - began:.0f} s", flush=True)


class Daybook:
    """The cluster, and a topic in it with COUNT messages."""

    def __init__(self, service_url: str, admin_url: str) -> None:
        self.service_url = service_url
        self.admin_url = admin_url
        self.topic = f"ways-{token_hex(4)}"
        self.options = {"service.url": service_url, "topic": self.topic}
        with blocking.connect_admin(admin_url) as admin:
            admin.create_topic(self.topic, partitions=4)
        with blocking.connect(service_url) as client, client.create_producer(self.topic) as sender:
            for i in range(COUNT):
                sender.send_nowait(b"%d" % i, key=f"k{i % 100}")
            sender.flush()

    def numbers(self, topic: str) -> list[int]:
        """Return the numbers in a topic, sorted."""
        with blocking.connect(self.service_url) as client:
            left = sum(each.next for each in client.offset_ranges(topic))
            found: list[int] = []
            with client.create_reader(topic, start="earliest") as reader:
                while len(found) < left:
                    got = reader.receive_batch(timeout_s=60)
                    found += [int(each.data or b"") for each in got]
        return sorted(found)

    def here(self, text: str) -> str:
        """Return an example of the guide with the addresses of this cluster."""
        return text.replace(SERVICE, self.service_url).replace(ADMIN, self.admin_url)


def check(what: str, *, holds: bool) -> None:
    if not holds:
        sys.exit(f"FAILED: {what}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def environment(**others: str) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": FAST,
        **others,
    }


@contextmanager
def spark_class(log: Path, *words: str, **others: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service of Spark for the length of the block."""
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *words],
            env=environment(**others),
            cwd=log.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def wait_for(log: Path, pattern: str, times: int = 1) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(re.findall(pattern, log.read_text())) < times:
        if time.monotonic() > deadline:
            sys.exit(f"FAILED: {log} never said {pattern!r}:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)


def run(*words: str, **others: str) -> str:
    done = subprocess.run(
        words,
        env=environment(**others),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    check(
        f"{' '.join(words)}:\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}",
        holds=not done.returncode,
    )
    return done.stdout


# -- a cluster of two workers


def cluster(daybook: Daybook, directory: Path) -> None:
    """Copy a topic on two workers, which are processes with executors of their own."""
    port = free_port()
    master, url = directory / "master.txt", f"spark://127.0.0.1:{port}"
    worker = "org.apache.spark.deploy.worker.Worker"
    with ExitStack() as stack:
        words = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        stack.enter_context(spark_class(master, "org.apache.spark.deploy.master.Master", *words))
        wait_for(master, "I have been elected leader|Starting Spark master")
        for number in (1, 2):
            log = directory / f"worker-{number}.txt"
            own = ("--cores", "1", "--memory", "600m", "--work-dir", str(directory / f"w{number}"))
            place = ("--webui-port", "0", "--host", "127.0.0.1", url)
            stack.enter_context(spark_class(log, worker, *own, *place))
        wait_for(master, "Registering worker", 2)
        target = f"{daybook.topic}-cluster"
        printed = run(
            *(sys.executable, "-m", "daybook.clients.cli.main", "pipeline", "copy"),
            *(daybook.topic, target, "--checkpoint", str(directory / "checkpoint")),
            *("--service-url", daybook.service_url, "--admin-url", daybook.admin_url),
            *("--rows-per-batch", "2000", "--output", "json"),
            *("--spark", f"spark.master={url}", "--spark", "spark.executor.memory=512m"),
            *("--spark", "spark.python.authenticate.socketTimeout=120s"),
        )
        check("each message is there once", holds=daybook.numbers(target) == list(range(COUNT)))
        check(f"the table is true: {printed}", holds=json.loads(printed)["written"] == COUNT)
        launched = [
            (directory / f"worker-{number}.txt").read_text().count("Launch command")
            for number in (1, 2)
        ]
        check(f"both workers had an executor: {launched}", holds=all(launched))


# -- declarative pipelines


def declarative(daybook: Daybook, directory: Path) -> None:
    """Run the declarative pipeline of the guide."""
    page = (DOCS / "pipelines.md").read_text()
    section = page.partition("## Declarative pipelines")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (spec,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    target = f"{daybook.topic}-evens"
    code = daybook.here(code).replace('"readings"', f'"{daybook.topic}"')
    code = code.replace('"even-readings"', f'"{target}"')
    (directory / "transformations").mkdir()
    (directory / "transformations" / "evens.py").write_text(code)
    spec = spec.replace("file:///var/lib/evens", (directory / "storage").as_uri())
    (directory / "spark-pipeline.yml").write_text(spec)
    evens = list(range(0, COUNT, 2))
    for _ in range(2):  # The second run has nothing to do.
        run(
            *(str(HOME / "bin" / "spark-pipelines"), "run"),
            *("--spec", str(directory / "spark-pipeline.yml")),
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        )
        check("the even numbers are there once", holds=daybook.numbers(target) == evens)


# -- Spark Connect


_CLIENT = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

url, service, admin, topic, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
options = {"service.url": service, "topic": topic}
print(spark.read.format("daybook").options(**options).load().count())
written = {**options, "topic": f"{topic}-connect", "admin.url": admin}
query = (
    spark.readStream.format("daybook").options(**options, startingOffsets="earliest").load()
    .select("key", "value")
    .writeStream.format("daybook").options(**written, semantics="exactly-once")
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
"""


def connect(daybook: Daybook, directory: Path) -> None:
    """Read and write by a client of Spark Connect; the server finds the format by itself."""
    port, log = free_port(), directory / "server.txt"
    words = (
        *("org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.python.authenticate.socketTimeout=120s"),
        "spark-internal",
    )
    # The Python workers of the server import Daybook, PySpark and its libraries.
    path = os.pathsep.join(each for each in sys.path if each)
    with spark_class(log, *words, PYTHONPATH=path):
        wait_for(log, "Spark Connect server started")
        client = (sys.executable, "-c", _CLIENT, f"sc://127.0.0.1:{port}", daybook.service_url)
        printed = run(*client, daybook.admin_url, daybook.topic, str(directory / "checkpoint"))
    check(f"the client read all: {printed}", holds=printed.split()[-1:] == [str(COUNT)])
    copied = daybook.numbers(f"{daybook.topic}-connect")
    check("each message was written once", holds=copied == list(range(COUNT)))


# -- Sail


_SAIL = """
import sys
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession
from daybook.spark import DaybookDataSource

service, topic = sys.argv[1:]
server = SparkConnectServer()
server.start()
_, port = server.listening_address
spark = SparkSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
spark.dataSource.register(DaybookDataSource)
options = {"service.url": service, "topic": topic}
frame = spark.read.format("daybook").options(**options).load()
print(frame.count(), flush=True)
frame.select("key", "value").write.format("daybook").mode("append").options(
    **{**options, "topic": f"{topic}-sail"}
).save()
"""


def sail(daybook: Daybook, directory: Path) -> None:
    """Read and write without a JVM."""
    del directory
    printed = run(sys.executable, "-c", _SAIL, daybook.service_url, daybook.topic)
    check(f"Sail read all: {printed}", holds=printed.split()[-1:] == [str(COUNT)])
    copied = daybook.numbers(f"{daybook.topic}-sail")
    check("each message was written", holds=copied == list(range(COUNT)))


if __name__ == "__main__":
    main(sys.argv[1:])
