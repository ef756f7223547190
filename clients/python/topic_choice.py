"""The topics that a consumer was asked for: a list of names, or a pattern.

A pattern is a regular expression that a whole name must match.  It is written like the name of a
topic, in one of its three forms, and is compared with names in the same form:

    orders-.*                               topics of public/default
    shop/eu/orders-.*                       topics of another namespace
    persistent://shop/eu/orders-.*          the full name

Tenant and namespace are plain text: a consumer looks for topics in one namespace.  A partitioned
topic is compared by its own name, without the number of a partition.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from daybook.clients.python.arguments import topic_name
from daybook.wire.errors import MalformedError
from daybook.wire.topics import TopicName, check_namespace

Topics: TypeAlias = str | Sequence[str] | re.Pattern[str]
"""The topics of a consumer: one, several, or those whose names match a pattern."""

_SCHEME = "persistent://"


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A pattern for the topics of one namespace."""

    regex: re.Pattern[str]
    namespace: str

    @classmethod
    def parse(cls, regex: re.Pattern[str]) -> "TopicPattern":
        """Raise ValueError if the pattern does not name one namespace."""
        parts = regex.pattern.removeprefix(_SCHEME).split("/", 2)
        if "://" in regex.pattern and not regex.pattern.startswith(_SCHEME):
            raise ValueError(f"the pattern {regex.pattern!r} must begin with {_SCHEME}")
        if len(parts) == 1 and not regex.pattern.startswith(_SCHEME):
            return cls(regex, "public/default")
        try:
            return cls(regex, check_namespace("/".join(parts[:2])))
        except MalformedError:
            raise ValueError(
                f"the pattern {regex.pattern!r} does not name one namespace: write"
                " persistent://TENANT/NAMESPACE/PATTERN, TENANT/NAMESPACE/PATTERN, or a PATTERN"
                " without / for public/default"
            ) from None

    def matches(self, topic: TopicName) -> bool:
        """Return True if the name of the topic matches as a whole."""
        text = self.regex.pattern
        if not topic.persistent or topic.namespace != self.namespace:
            return False
        if text.startswith(_SCHEME):
            name = topic.full
        elif "/" in text:
            name = f"{topic.namespace}/{topic.local}"
        else:
            name = topic.local
        return self.regex.fullmatch(name) is not None

    def select(self, names: Iterable[str]) -> dict[TopicName, list[TopicName]]:
        """Return the topics that match, each with those of its names that are in the list.

        A partitioned topic is in a list by the names of its partitions.
        """
        found: dict[TopicName, list[TopicName]] = {}
        for name in names:
            try:
                topic = TopicName.parse(name)
            except MalformedError:  # A topic that this client could not open.
                continue
            if self.matches(topic.base):
                found.setdefault(topic.base, []).append(topic)
        return found


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """A list of topics, or a pattern."""

    names: tuple[TopicName, ...] = ()
    pattern: TopicPattern | None = None

    @property
    def first(self) -> TopicName | None:
        """The first topic, by whose name retry and dead letter topics are named."""
        return self.names[0] if self.names else None

    def with_topic(self, topic: TopicName) -> "TopicChoice":
        """Return the choice with one more topic."""
        return replace(self, names=tuple(dict.fromkeys((*self.names, topic))))

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics {self.pattern.regex.pattern!r}"
        return ", ".join(name.full for name in self.names)


def topic_choice(topics: Sequence[str] | re.Pattern[str]) -> TopicChoice:
    """Return the parsed choice; raise TypeError or ValueError."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("the pattern of topics must be text, not bytes")
        return TopicChoice(pattern=TopicPattern.parse(topics))
    if not isinstance(topics, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"topic must be a name, a list of names or a pattern, not {type(topics).__name__}"
        )
    names = tuple(dict.fromkeys(topic_name(name) for name in topics))
    if not names:
        raise ValueError("the list of topics is empty: give at least one name")
    for name in names:
        if name.base != name and name.base in names:
            raise ValueError(f"{name} is a partition of {name.base}, which is in the list, too")
    return TopicChoice(names)
