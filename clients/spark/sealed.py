"""Plan tasks over sealed ledgers: where each range of offsets lies, cut into about equal bytes.

Pure.  A task keeps its range of offsets, which decides what it reads.  The ledgers that it carries
only say where these messages are; messages in none of them are read through the broker.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from daybook.clients.python.reader import SealedLedger, TopicLedgers
from daybook.clients.spark.offsets import OffsetRange
from daybook.clients.spark.options import ReadTask, TaskLedgers

TASK_BYTES = 64 << 20
"""A range with more stored bytes in sealed ledgers than this is cut."""


def with_ledgers(
    task: ReadTask, found: TopicLedgers, *, task_bytes: int = TASK_BYTES
) -> list[ReadTask]:
    """Return the tasks that read the range of this task, with the ledgers that have its messages.

    Their ranges follow each other, and have at most about `task_bytes` in sealed ledgers.
    """
    if found.url is None:
        return [task]
    return [
        replace(task, part=part, ledgers=_ledgers_of(part, found.url, found.sealed))
        for part in cut(task.part, found.sealed, task_bytes)
    ]


def _ledgers_of(part: OffsetRange, url: str, sealed: Sequence[SealedLedger]) -> TaskLedgers | None:
    overlapping = tuple(each for each in sealed if each.first < part.end and part.start < each.next)
    return TaskLedgers(url, overlapping) if overlapping else None


def cut(part: OffsetRange, sealed: Sequence[SealedLedger], task_bytes: int) -> list[OffsetRange]:
    """Cut a range into parts with about the same number of bytes in sealed ledgers."""
    weights: list[tuple[int, int, float]] = []  # offsets [first, next) of the range, and the bytes
    for ledger in sealed:
        first, following = max(ledger.first, part.start), min(ledger.next, part.end)
        if first < following:
            share = (following - first) / (ledger.next - ledger.first)
            weights.append((first, following, ledger.bytes * share))
    total = sum(size for _, _, size in weights)
    count = min(len(part), -(-int(total) // task_bytes))
    if count <= 1:
        return [part]
    edges = [part.start]
    goal, before = total / count, 0.0
    for first, following, size in weights:
        while len(edges) < count and before + size >= goal * len(edges):
            share = (goal * len(edges) - before) / size if size else 1.0
            edge = first + round((following - first) * share)
            edges.append(min(max(edge, edges[-1]), part.end))
        before += size
    edges.append(part.end)
    found = [replace(part, start=low, end=high) for low, high in pairwise(edges) if low < high]
    assert sum(map(len, found)) == len(part), "each offset is in exactly one part"
    return found
