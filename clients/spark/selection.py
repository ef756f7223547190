"""The topics that a query reads, as its options name them.  Pure.

    topic             one topic
    subscribe         topics, separated by commas
    subscribePattern  a regular expression that the whole name of a topic matches
    assign            partitions of topics, as JSON: {"orders": [0, 2]}

A topic is known by its full name.  The column `topic` shows the name that the option has; topics
that match a pattern show the full name.  A pattern is written as for consumers: see
`clients.python.topic_choice`.
"""

# pyright: basic
# (the libraries underneath have no types)

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from daybook.clients.spark.offsets import full_topic_name

_WORDS_MAX = 1_000
KINDS = ("topic", "subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics of a query: by name, some partitions of them, or by a pattern."""

    shown: Mapping[str, str] = field(default_factory=dict)  # full name -> name in the option
    assigned: Mapping[str, tuple[int, ...]] | None = None  # full name -> partitions
    pattern: str | None = None

    @property
    def only_topic(self) -> str | None:
        """The full name of the topic, if the options name one topic."""
        return next(iter(self.shown)) if len(self.shown) == 1 else None

    @property
    def words(self) -> str:
        """The topics as the option names them, cut where they are very many."""
        words = self.pattern if self.pattern is not None else ", ".join(self.shown.values())
        return words if len(words) <= _WORDS_MAX else f"{words[:_WORDS_MAX]} ..."

    def name_shown(self, topic: str) -> str:
        """Return what the column `topic` shows for a full name."""
        return self.shown.get(topic, topic)


def parse_selection(given: Mapping[str, str]) -> Selection:
    """Parse the options, whose names are in lower case.  Raise ValueError with advice."""
    named = [kind for kind in KINDS if kind.lower() in given]
    if len(named) != 1:
        found = " and ".join(named) or "none of them"
        raise ValueError(f"give one of the options {', '.join(KINDS)}; there is {found}")
    (kind,) = named
    text = given[kind.lower()].strip()
    if not text:
        raise ValueError(f"the option {kind!r} is empty: name a topic")
    if kind == "subscribePattern":
        return Selection(pattern=_checked_pattern(text))
    if kind == "assign":
        return _parse_assignment(text)
    names = [text] if kind == "topic" else [name.strip() for name in text.split(",")]
    shown = {full_topic_name(name, kind): name for name in names}
    if len(shown) < len(names):
        raise ValueError(f"{kind}={text!r} names a topic twice")
    return Selection(shown)


def _checked_pattern(text: str) -> str:
    from daybook.clients.python.topic_choice import TopicPattern  # Only patterns need it.

    try:
        TopicPattern.parse(re.compile(text))
    except re.error as error:
        raise ValueError(
            f"subscribePattern={text!r} is not a regular expression: {error}"
        ) from None
    return text


def _parse_assignment(text: str) -> Selection:
    advice = 'write JSON such as {"orders": [0, 2]}'
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"assign={text!r} is not valid: {advice}") from None
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(f"assign={text!r} is not valid: {advice}")
    shown: dict[str, str] = {}
    assigned: dict[str, tuple[int, ...]] = {}
    for name, indexes in parsed.items():
        full = full_topic_name(str(name), "assign")
        valid = isinstance(indexes, list) and all(type(i) is int and i >= 0 for i in indexes)
        if not valid or not indexes or len(set(indexes)) < len(indexes) or full in shown:
            raise ValueError(
                f"assign: {name!r}: {indexes!r} is not a list of different partitions; {advice}"
            )
        shown[full] = str(name)
        assigned[full] = tuple(sorted(indexes))
    return Selection(shown, assigned)
