"""The driver's side of an exactly-once write: commit what all tasks have staged, or abandon it.

Spark calls `commit` again with other staging ledgers when it repeats a micro-batch, and `abort`
whenever `commit` raised.  Neither harms: the brokers know a commit by its staging ledgers, and
never abandon what is committed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import trio
from pyspark.sql.datasource import WriterCommitMessage

from daybook.clients.python.errors import BrokerError, ConflictError, InDoubtError
from daybook.clients.python.sink_requests import Batch, NotAppliedError, Share, SinkRequests
from daybook.clients.spark.sink_options import OnceOptions

_log = logging.getLogger("daybook.spark")


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """The result of a task: its rows are staged."""

    task: int
    sink: str
    batch: Batch
    share: Share | None  # None if the task had no rows


def commit_staged(
    options: OnceOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> None:
    """Commit a batch, and return when the whole batch is in the topic."""
    found = staged(messages)
    if len(found) < len(messages):
        raise RuntimeError(
            f"the batch {batch_id} cannot be committed, because"
            f" {len(messages) - len(found)} of its {len(messages)} tasks have no result"
        )
    if found:
        trio.run(commit, _requests(options), options, found, batch_id)


def abort_staged(options: OnceOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Abandon what the tasks of a batch have staged, unless it is committed."""
    found = staged(messages)
    if any(each.share is not None for each in found):
        trio.run(abort, _requests(options), options, found)


def _requests(options: OnceOptions) -> SinkRequests:
    who = options.credentials
    return SinkRequests(options.admin_url, tls=options.tls, token=who.token, basic=who.basic)


def staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """Return the results of tasks in the order of the tasks."""
    found = [each for each in messages if isinstance(each, Staged)]
    return sorted(found, key=lambda each: each.task)


async def commit(
    requests: SinkRequests, options: OnceOptions, tasks: Sequence[Staged], batch_id: int
) -> None:
    """Commit, and roll forward until the batch is applied.

    Raise ConflictError if the batch can never be committed so, and NotAppliedError if it is
    committed and not applied in time.  A stream repeats the micro-batch after any error.
    """
    sink, batch = _one_batch(tasks, batch_id)
    shares = [each.share for each in tasks]
    deadline_s = trio.current_time() + options.commit_timeout_s

    def left_s() -> float:
        return max(0.0, deadline_s - trio.current_time())

    is_batch = not options.checkpoint
    while True:
        try:
            done = await requests.commit(
                sink,
                batch,
                shares,
                checkpoint=options.checkpoint,
                once=is_batch,
                timeout_s=left_s(),
            )
        except ConflictError:
            raise
        except BrokerError as error:
            if not is_batch:
                raise
            raise InDoubtError(
                f"it is unknown whether the rows are committed ({error}): if `daybook sinks show"
                f" {sink}` says COMMITTED or APPLIED, do not write them again"
            ) from error
        if done.warning:
            _log.warning("%s", done.warning)
        try:
            await requests.roll_forward(sink, timeout_s=left_s(), topics=batch.topics)
        except BrokerError as error:
            if not is_batch:
                raise
            # A stream repeats its micro-batch, which the brokers know.  A batch has another name
            # when it is written again.
            raise NotAppliedError(
                f"the rows are committed, and the brokers go on to put them into the topic"
                f" ({type(error).__name__}): do not write them again, `daybook sinks show {sink}`"
                " tells how far they are"
            ) from error
        # `wait`: an earlier batch had to be applied first, and nothing was committed.
        if done.outcome != "wait":
            return


async def abort(requests: SinkRequests, options: OnceOptions, tasks: Sequence[Staged]) -> None:
    """Abandon the shares; the brokers keep those of a batch that is committed."""
    sink, batch = _one_batch(tasks, tasks[0].batch.batch_id)
    shares = [each.share for each in tasks]
    await requests.abort(sink, batch, shares, checkpoint=options.checkpoint)


def _one_batch(tasks: Sequence[Staged], batch_id: int) -> tuple[str, Batch]:
    """Return the sink and the batch of all tasks; raise RuntimeError if they differ."""
    sink, batch = tasks[0].sink, tasks[0].batch
    for each in tasks:
        if (each.sink, each.batch) != (sink, batch):
            raise RuntimeError(
                f"the task {each.task} wrote {each.batch} to the sink {each.sink}, and the task"
                f" {tasks[0].task} wrote {batch} to the sink {sink}: run the batch again"
            )
    if batch.batch_id != batch_id:
        raise RuntimeError(
            f"the tasks wrote the batch {batch.batch_id}, and Spark commits the batch {batch_id}"
        )
    return sink, batch
