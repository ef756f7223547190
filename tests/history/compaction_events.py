"""The events of clients that read the latest message of each key of a topic.

Keys and empty values are those of the sends (`Send.key`, `Send.empty`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compacted ledger is in force: it stands for everything up to this entry."""

    topic: str
    horizon: tuple[int, int]  # ledger, entry


@dataclass(frozen=True, slots=True)
class LatestFollows:
    """A reader or a table view of the latest messages is open, from the earliest message on."""

    topic: str
    reader: str  # unique in the history
    # A subscription: each of its consumers goes on with what is not acknowledged.
    durable: bool = False


@dataclass(frozen=True, slots=True)
class LatestRead:
    """A reader of the latest messages received one.  It may skip what a later message replaced."""

    topic: str
    reader: str
    position: tuple[int, int, int]
    value: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class LatestEnd:
    """The reader found no more messages after everything was healed."""

    topic: str
    reader: str


@dataclass(frozen=True, slots=True)
class ViewChange:
    """A table view has another value for a key; `value` is empty if the key was removed."""

    topic: str
    reader: str
    key: str
    value: str = ""
