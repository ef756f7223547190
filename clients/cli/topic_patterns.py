"""Patterns for the names of topics, with the meaning that a consumer's pattern has.

A pattern is a regular expression that matches the whole name, without the domain of the topic and
without `-partition-N`.
"""

import re
from collections.abc import Callable

from daybook.clients.cli.errors import UserError
from daybook.wire.topics import TopicName

# A star behind a plain character, as in app-*.  Behind ., a group, a set or \d it has a meaning.
_LOOKS_LIKE_GLOB = re.compile(r"(?:^|(?<!\\)[^.)\]\\])\*")


def parse_pattern(text: str) -> Callable[[str], bool]:
    """Return a function that tells if the full name of a topic matches.  Raise UserError."""
    _, domain, rest = text.rpartition("://")
    expression = rest if domain else text
    if _LOOKS_LIKE_GLOB.search(expression):
        raise UserError(
            f"{text!r} is read as a regular expression, in which * repeats what is before it: write"
            " .* for any text, as app-.*, and (x)* for any number of x."
        )
    try:
        compiled = re.compile(expression)
    except re.error as error:
        raise UserError(f"{text!r} is not a regular expression: {error}.") from None

    def matches(full: str) -> bool:
        name = TopicName.parse(full).base
        compared = name.full.partition("://")[2] if "/" in expression else name.local
        return compiled.fullmatch(compared) is not None

    return matches
