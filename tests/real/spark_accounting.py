"""A Spark source that notes how many bytes brokers sent to each process that plans or reads.

Spark takes it to its processes by value, so it imports its modules where it runs.
"""

from typing import Any


def counting_source(notes: str) -> type:
    """Return the source `counted`: `daybook`, and a file in `notes` per planning and task."""
    from daybook.clients.spark.source import BatchReader, DaybookDataSource, StreamReader

    def counted(role: str, work: Any) -> Any:
        """Do `work`; note the process, and the bytes that its sockets received meanwhile."""
        import json
        import os
        import uuid
        from pathlib import Path

        from daybook.wire import tcp

        received = 0
        plain = tcp.TcpStream.try_recv_into

        def count(stream: Any, buffer: memoryview) -> int | None:
            nonlocal received
            got = plain(stream, buffer)
            received += got or 0
            return got

        tcp.TcpStream.try_recv_into = count  # type: ignore[method-assign, assignment]
        try:
            return work()
        finally:
            tcp.TcpStream.try_recv_into = plain  # type: ignore[method-assign]
            note = {"role": role, "pid": os.getpid(), "bytes": received}
            Path(notes, uuid.uuid4().hex).write_text(json.dumps(note))

    class CountedBatch(BatchReader):
        def partitions(self) -> Any:
            return counted("plan", super().partitions)

        def read(self, partition: Any) -> Any:
            return iter(counted("task", lambda: list(BatchReader.read(self, partition))))

    class CountedStream(StreamReader):
        def initialOffset(self) -> Any:  # noqa: N802
            return counted("plan", super().initialOffset)

        def prepareForTriggerAvailableNow(self) -> Any:  # noqa: N802
            return counted("plan", super().prepareForTriggerAvailableNow)

        def latestOffset(self, start: Any, limit_: Any) -> Any:  # noqa: N802
            return counted("plan", lambda: StreamReader.latestOffset(self, start, limit_))

        def reportLatestOffset(self) -> Any:  # noqa: N802
            return counted("plan", super().reportLatestOffset)

        def partitions(self, start: Any, end: Any) -> Any:
            return counted("plan", lambda: StreamReader.partitions(self, start, end))

        def read(self, partition: Any) -> Any:
            return iter(counted("task", lambda: list(StreamReader.read(self, partition))))

    class CountedSource(DaybookDataSource):
        @classmethod
        def name(cls) -> str:
            return "counted"

        def reader(self, schema: Any) -> Any:
            return CountedBatch(super().reader(schema)._options)

        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            reader = super().streamReader(schema)
            assert isinstance(reader, StreamReader), "the options are right"
            return CountedStream(reader._options)

    return CountedSource
