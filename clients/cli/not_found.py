"""The command that shows what exists, for the error that something does not.

The error of a broker names what is missing, and the hint is for that kind of object: for a
subscription it lists the subscriptions of the topic, not the topics.  The texts are those of
Daybook's brokers and of Pulsar's.  A text that is not known gets no hint: a wrong one costs more
than none.
"""

import re
from collections.abc import Callable
from typing import TypeAlias

from daybook.wire.errors import MalformedError
from daybook.wire.topics import TopicName

_DEFAULT_NAMESPACE = "public/default"

_Hint: TypeAlias = Callable[[re.Match[str]], str]


def _topic(text: str) -> str:
    """Return a topic as short as a user writes it."""
    try:
        name = TopicName.parse(text)
    except MalformedError:
        return text
    if name.domain == "persistent" and name.namespace == _DEFAULT_NAMESPACE:
        return name.full.rpartition("/")[2]
    return name.full


def _topics_beside(text: str) -> str:
    """Return the command that lists the topics of the namespace of a topic."""
    with_namespace = ""
    try:
        namespace = TopicName.parse(text).namespace
    except MalformedError:
        namespace = _DEFAULT_NAMESPACE
    if namespace != _DEFAULT_NAMESPACE:
        with_namespace = f" --namespace {namespace}"
    return f"`daybook topics list{with_namespace}` shows the topics."


def _namespaces_beside(found: re.Match[str]) -> str:
    tenant = found[1].partition("/")[0]
    return (
        f"`daybook namespaces list {tenant}` shows those that exist, and `daybook namespaces"
        f" create {found[1]}` creates this one."
    )


# The first pattern that is found in the error counts.
_HINTS: tuple[tuple[str, _Hint], ...] = (
    (
        r"(\S+) has no subscription |[Ss]ubscription (?:\S+ )?not found",
        lambda m: (
            f"`daybook topics subscriptions list {_topic(m[1]) if m[1] else 'TOPIC'}` shows the"
            " subscriptions of the topic."
        ),
    ),
    (
        r"[Tt]enant (\S+) (?:does not|doesn't) exist",
        lambda m: (
            "`daybook tenants list` shows those that exist, and `daybook tenants create"
            f" {m[1]}` creates this one."
        ),
    ),
    (r"[Nn]amespace (\S+) (?:does not exist|not found)", _namespaces_beside),
    (
        r"no bundle \S+ in (\S+)",
        lambda m: f"`daybook bundles list {m[1]}` shows the bundles of the namespace.",
    ),
    (
        r"(\S+) has no (?:version \d+ of its )?schema",
        lambda m: f"`daybook schemas list {_topic(m[1])}` shows the versions of the schema.",
    ),
    (
        r"(\S+) has (?:\d+ entr|no entry)|(\S+) has no offset",
        lambda m: f"`daybook topics stats {_topic(m[1] or m[2])}` shows what the topic holds.",
    ),
    (
        r"subscription \S+ has fewer than",
        lambda _: "`daybook topics analyze` shows how far the subscription is behind.",
    ),
    (
        r"of this name has no partitions",
        lambda _: "Create another topic with --partitions, and send to that one.",
    ),
    (r"[Tt]opic (\S+) (?:does not exist|not found)", lambda m: _topics_beside(m[1])),
    (r"(\S+) does not exist: .* has only", lambda m: _topics_beside(m[1])),
    (r"[Tt]opic", lambda _: "`daybook topics list` shows the topics."),
)


def hint(error: str) -> str:
    """Return the sentence that says what to ask next, with a space before it; "" for none."""
    for pattern, say in _HINTS:
        found = re.search(pattern, error)
        if found is not None:
            return f" {say(found)}"
    return ""
