"""Writes batches that are in topics exactly once, through any broker: stage, commit, roll forward.

    sinks = SinkClient("http://localhost:8080")
    batch = Batch("query", 7, {"persistent://public/default/orders": 4})
    attempt = sinks.begin("orders", batch)                    in a task
    attempt.append("persistent://public/default/orders-partition-0", [staged_entry(...)])
    share = attempt.close(rows=1, hash_=hash_of_rows)
    sinks.commit("orders", batch, [share], checkpoint="/checkpoints/orders")    in the driver
    sinks.roll_forward("orders", timeout_s=120)

The calls block, in any thread or process that runs no trio loop, and nothing outlives a call.
`sink_requests` has the same for trio.
"""

from collections.abc import Iterable, Sequence

import trio

from daybook.clients.python.credentials import Basic, Token
from daybook.clients.python.sink_requests import (
    Batch,
    Committed,
    NotAppliedError,
    PartitionState,
    Share,
    SinkRequests,
    SinkState,
    StagingAttempt,
)
from daybook.clients.python.tls import TlsOptions

__all__ = [
    "Attempt",
    "Batch",
    "Committed",
    "NotAppliedError",
    "PartitionState",
    "Share",
    "SinkClient",
    "SinkState",
]


class Attempt:
    """The staging of one task.  Any error ends it."""

    def __init__(self, attempt: StagingAttempt) -> None:
        self._attempt = attempt

    @property
    def attempt(self) -> str:
        return self._attempt.attempt

    @property
    def ledger_id(self) -> int:
        return self._attempt.ledger_id

    @property
    def entries(self) -> int:
        return self._attempt.entries

    def append(self, topic: str, entries: Iterable[bytes]) -> None:
        """Append staged entries to one topic partition; they are durable when this returns."""

        async def append() -> None:
            try:
                await self._attempt.append(topic, entries)
            finally:
                # Each call has a clock of its own, so it cannot tell for how long one was idle.
                self._attempt.disconnect()

        trio.run(append)

    def close(self, *, rows: int, hash_: int) -> Share:
        """End the attempt."""
        return trio.run(lambda: self._attempt.close(rows=rows, hash_=hash_))

    def give_up(self) -> None:
        """End the attempt without a share; the brokers delete later what it has staged."""
        trio.run(self._attempt.give_up)


class SinkClient:
    """`admin_url` names brokers: `http://host:port`, or several hosts with commas between.

    `token` or `basic` prove who the client is, as for `daybook.connect`.
    """

    def __init__(
        self,
        admin_url: str,
        *,
        timeout_s: float = 60.0,
        tls: TlsOptions | None = None,
        token: Token | None = None,
        basic: Basic | None = None,
    ) -> None:
        self._requests = SinkRequests(
            admin_url, timeout_s=timeout_s, tls=tls, token=token, basic=basic
        )

    def begin(self, name: str, batch: Batch) -> Attempt:
        """Begin to stage the rows of one task."""
        return Attempt(trio.run(self._requests.begin, name, batch))

    def commit(
        self,
        name: str,
        batch: Batch,
        shares: Sequence[Share | None],
        *,
        checkpoint: str,
        once: bool = False,
        timeout_s: float = 120.0,
    ) -> Committed:
        """Commit the shares of all tasks, in their order.

        Raise ConflictError if the batch can never be committed so.  After any other error the
        outcome is unknown: call again with the same shares.
        """
        return trio.run(
            lambda: self._requests.commit(
                name, batch, shares, checkpoint=checkpoint, once=once, timeout_s=timeout_s
            )
        )

    def abort(
        self,
        name: str,
        batch: Batch,
        shares: Sequence[Share | None],
        *,
        checkpoint: str,
        timeout_s: float = 60.0,
    ) -> list[str]:
        """Abandon shares and delete them; return the attempts that a committed batch keeps."""
        return trio.run(
            lambda: self._requests.abort(
                name, batch, shares, checkpoint=checkpoint, timeout_s=timeout_s
            )
        )

    def roll_forward(
        self, name: str, *, timeout_s: float = 120.0, topics: Iterable[str] = ()
    ) -> SinkState:
        """Return when the last committed batch is applied.

        `topics` are those of the batch: a sink that has stored nothing does not know who may ask
        for it.  Raise NotAppliedError if that takes longer, or an operator has to decide.
        """
        return trio.run(
            lambda: self._requests.roll_forward(name, timeout_s=timeout_s, topics=topics)
        )

    def state(self, name: str) -> SinkState:
        """Return the state of a sink.  Raise NotFoundError."""
        return trio.run(self._requests.state, name)

    def forget(self, name: str) -> None:
        """Let the next commit come from any query; the last batch must be applied."""
        trio.run(self._requests.forget, name)
