"""Which topics of Kafka a checkpoint belongs to.

Spark's checkpoint of a Kafka source has offsets alone.  A topic that was deleted and created again,
or one of another cluster, would be read from the offsets of the old one.  So a pipeline keeps the
ids of the cluster and of its topics beside the checkpoint, and compares them with those that Kafka
tells.

    CHECKPOINT/kafka.json  {"version": 1, "cluster": ID, "topics": {NAME: ID}}
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from daybook.clients.pipelines.spec import SpecError

FILE = "kafka.json"
_VERSION = 1
_REMEDY = "take a new checkpoint (and a new --name), which begins anew"


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """The ids of a cluster and of topics; None: Kafka does not tell, as releases before 2.8."""

    cluster: str | None = None
    topics: Mapping[str, str | None] = field(default_factory=dict[str, str | None])

    def encode(self) -> str:
        topics = dict(sorted(self.topics.items()))
        return json.dumps({"version": _VERSION, "cluster": self.cluster, "topics": topics})


def parse(text: str, where: str) -> KafkaTopics:
    """Return what a file holds.  Raise SpecError."""
    try:
        found: Any = json.loads(text)
        if found["version"] != _VERSION:
            raise ValueError("its version is unknown")
        made = KafkaTopics(
            _id(found["cluster"]), {str(n): _id(i) for n, i in found["topics"].items()}
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SpecError(
            f"{where} is damaged ({error}), so nobody knows of which topics of Kafka the checkpoint"
            f" is: restore it from a copy, or {_REMEDY}"
        ) from None
    return made


def _id(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r} is no id")
    return value


def checked(known: KafkaTopics, now: KafkaTopics, checkpoint: str) -> KafkaTopics:
    """Return the record of a run that goes on: what is known, and what is new.

    Raise SpecError, with the remedy, if the checkpoint is of other topics than those that are read
    now.  A topic that is away stays in the record.
    """
    if _differ(known.cluster, now.cluster):
        raise SpecError(
            f"{checkpoint} is the checkpoint of the cluster {known.cluster} of Kafka, and these"
            f" brokers belong to {now.cluster}: correct the address, or {_REMEDY}"
        )
    if known.topics and now.topics and not known.topics.keys() & now.topics.keys():
        raise SpecError(
            f"{checkpoint} is the checkpoint of {_listed(known.topics)} of Kafka, and not of"
            f" {_listed(now.topics)}: {_REMEDY}"
        )
    anew = [name for name, id_ in now.topics.items() if _differ(known.topics.get(name), id_)]
    if anew:
        raise SpecError(
            f"{_listed(anew)} of Kafka was deleted and created again, and {checkpoint} has offsets"
            f" of the old one: {_REMEDY}"
        )
    merged = {**known.topics}
    for name, id_ in now.topics.items():
        merged[name] = merged.get(name) or id_
    return KafkaTopics(known.cluster or now.cluster, merged)


def _differ(before: str | None, now: str | None) -> bool:
    """Return True if two ids are known and differ."""
    return before is not None and now is not None and before != now


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
