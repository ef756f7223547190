"""The offset of a stream as Spark keeps it in the checkpoint.  Pure.

    {"instance": "8a6f...", "topics": {"persistent://public/default/t": {"0": {"created": 17,
     "next": 5}}}, "version": 2}

It names each topic with the creation of its partitions, and the instance of the cluster.  Both are
left out if the broker does not tell them.  Version 1, `{"0": 5}`, names a partition and its next
offset only, and is still read: a stream had one topic then.  Spark compares two offsets as text, so
equal offsets must be equal text.  `tests/golden/spark_v1` and `spark_v2` hold both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daybook.clients.spark.offsets import Partition, Progress

VERSION = 2


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream has read each partition of its topics."""

    partitions: Mapping[Partition, Progress]
    instance: str | None = None


def encode_offset(offset: StreamOffset) -> dict[str, Any]:
    """Return what Spark writes into the checkpoint as JSON."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, index), progress in sorted(offset.partitions.items()):
        stored = {} if progress.created is None else {"created": progress.created}
        topics.setdefault(topic, {})[str(index)] = {**stored, "next": progress.next}
    instance = {} if offset.instance is None else {"instance": offset.instance}
    return {**instance, "topics": topics, "version": VERSION}


def decode_offset(stored: Mapping[str, Any], topic: str | None) -> StreamOffset:
    """Return the offset that a checkpoint holds, in version 2 or 1.

    `topic` is the full name if the query reads one topic only.  Raise ValueError for anything else.
    """
    if "version" not in stored:
        return _decode_version_1(stored, topic)
    if stored["version"] != VERSION:
        raise ValueError(
            f"the checkpoint has offsets of version {stored['version']}, and this release knows"
            f" version {VERSION}: use the release that has written it, or a newer one"
        )
    try:
        partitions = {
            Partition(str(name), int(index)): Progress(int(each["next"]), each.get("created"))
            for name, those in stored["topics"].items()
            for index, each in those.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(stored) from error
    return StreamOffset(partitions, stored.get("instance"))


def _decode_version_1(stored: Mapping[str, Any], topic: str | None) -> StreamOffset:
    if not all(index.isdigit() and type(offset) is int for index, offset in stored.items()):
        raise _unreadable(stored)
    if topic is None:
        raise ValueError(
            "the checkpoint has offsets of version 1, which name no topic, and the query reads"
            " several: run it once with the option `topic` and the topic that it had before"
        )
    return StreamOffset({Partition(topic, int(p)): Progress(o) for p, o in stored.items()})


def _unreadable(stored: Mapping[str, Any]) -> ValueError:
    return ValueError(
        f"the checkpoint has an offset that this source has not written: {dict(stored)!r:.200};"
        " is it the checkpoint of another query?"
    )
