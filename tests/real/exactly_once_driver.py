"""The driver of the query that `exactly_once` breaks; it runs until its standard input ends.

    python -m tests.real.exactly_once_driver OPTIONS

OPTIONS is a JSON object with the topics, the URLs of the brokers and a directory.  After the end
of the input the query copies what the source has, and the exit code is 0.  The exit code is 1 if
the query failed.
"""

import json
import sys
import threading
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from tests.real.spark_session import spark_session

_MASTER = "local[2,3]"  # a task may fail twice, as on a cluster
_ASK_S = 0.5


def main() -> None:
    given = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    done = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        done.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    service = {"service.url": given["service_url"]}
    with spark_session(directory / "warehouse", _MASTER) as spark:
        query = (
            spark.readStream.format("daybook")
            .options(**service, topic=given["source"], startingOffsets="earliest")
            .load()
            .select("key", "value")
            .writeStream.format("daybook")
            .options(**service, topic=given["target"], semantics="exactly-once")
            .option("admin.url", given["admin_url"])
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )
        sys.exit(_follow(query, done))


def _follow(query: StreamingQuery, done: threading.Event) -> int:
    try:
        while not query.awaitTermination(_ASK_S):  # type: ignore[arg-type]
            if done.is_set():
                query.processAllAvailable()
                query.stop()
                return 0
    except Exception as error:  # Spark has many classes of errors, and all end this driver.
        print(f"the query failed: {error}", flush=True)
    return 1


if __name__ == "__main__":
    main()
