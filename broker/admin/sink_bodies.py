"""The bodies of requests about batches of sinks, and the limits of what they may say.

A commit writes what its body says to the metadata store, where it stays.  So everything is bounded
before it is used: a client with the right to produce must not fill the store, and no value may be
one that cannot be stored.
"""

from collections.abc import Iterable

import msgspec

from daybook.broker.errors import PreconditionError

QUERY_ID_BYTES_MAX = 1 << 10
CHECKPOINT_BYTES_MAX = 8 << 10  # Paths of HDFS have up to 8,000 characters.
TOPIC_BYTES_MAX = 1 << 10
TOPICS_MAX = 1_000
TASKS_MAX = 50_000
ABORTED_MAX = 1_000  # tasks in one request: each is looked up before anything is deleted
COUNT_MAX = 1_000_000  # the partitions of one topic
_I64_MAX = (1 << 63) - 1
_U64_MAX = (1 << 64) - 1
_ATTEMPT_CHARS = frozenset("0123456789abcdefghijklmnopqrstuvwxyz-")
_ATTEMPT_CHARS_MAX = 64


class Share(msgspec.Struct, rename="camel"):
    """The staging ledger of one task."""

    attempt: str
    ledger_id: int
    rows: int = 0
    hash: int = 0
    entries: int = 0
    bytes: int = 0


class BatchBody(msgspec.Struct, rename="camel"):
    query_id: str
    batch_id: int
    topics: dict[str, int]
    checkpoint: str = ""
    once: bool = False
    shares: list[Share | None] = []


class Rows(msgspec.Struct):
    rows: int
    hash: int


def check_batch(name: str, body: BatchBody) -> None:
    """Raise PreconditionError if a limit is exceeded; the topics are parsed later."""
    _check_characters("the name of a sink", name)
    _check_characters("the id of a query", body.query_id)
    _check_size("the id of a query", body.query_id, QUERY_ID_BYTES_MAX)
    _check_number("the number of a batch", body.batch_id, _I64_MAX)
    check_checkpoint(body.checkpoint)
    check_topics(body.topics)
    for topic, count in body.topics.items():
        _check_number(f"the number of partitions of {topic}", count, COUNT_MAX)
    if len(body.shares) > TASKS_MAX:
        raise PreconditionError(
            f"a batch has at most {TASKS_MAX} tasks, and the request names {len(body.shares)}"
        )
    for share in body.shares:
        if share is not None:
            _check_share(share)


def check_abort(body: BatchBody) -> None:
    """Raise PreconditionError if a request to abandon tasks would hold up others."""
    if len(body.shares) > ABORTED_MAX:
        raise PreconditionError(
            f"a request abandons at most {ABORTED_MAX} tasks, and this one names"
            f" {len(body.shares)}: send several"
        )


def check_topics(topics: Iterable[str]) -> None:
    found = list(topics)
    if len(found) > TOPICS_MAX:
        raise PreconditionError(
            f"a request about a sink names at most {TOPICS_MAX} topics, not {len(found)}"
        )
    for topic in found:
        _check_size("the name of a topic", topic, TOPIC_BYTES_MAX)


def check_checkpoint(checkpoint: str) -> None:
    _check_size("the path of a checkpoint", checkpoint, CHECKPOINT_BYTES_MAX)


def check_rows(body: Rows) -> None:
    _check_number("the number of rows", body.rows, _I64_MAX)
    _check_number("the hash of rows", body.hash, _U64_MAX)


def _check_characters(what: str, text: str) -> None:
    if any(ord(each) < ord(" ") or each == "\x7f" for each in text):
        raise PreconditionError(f"{what} may not have control characters, such as a line break")


def _check_size(what: str, text: str, bytes_max: int) -> None:
    size = len(text.encode(errors="replace"))
    if size > bytes_max:
        raise PreconditionError(f"{what} has at most {bytes_max} bytes, not {size}")


def _check_number(what: str, number: int, most: int) -> None:
    if not 0 <= number <= most:
        raise PreconditionError(f"{what} must be from 0 to {most}")


def _check_share(share: Share) -> None:
    attempt = share.attempt
    if not 0 < len(attempt) <= _ATTEMPT_CHARS_MAX or not _ATTEMPT_CHARS.issuperset(attempt):
        raise PreconditionError(f"{attempt[:_ATTEMPT_CHARS_MAX]!r} is not the name of an attempt")
    _check_number("the id of a staging ledger", share.ledger_id, _I64_MAX)
