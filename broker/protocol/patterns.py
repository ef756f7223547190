r"""Regular expressions over names of topics, in time that is linear in the length of the name.

    pattern = TopicPattern("persistent://public/default/sensor-.*")
    pattern.matches("persistent://public/default/sensor-7-partition-2")     # True

A client sends the expression, so nothing about it can be trusted: with Python's `re`, thirty
characters can keep the broker busy forever.  RE2 never backtracks and bounds its memory.  Its
syntax is also Pulsar's own (RE2/J).  Look-arounds, back-references and possessive repetition are
not known to it and raise `PatternError`.  The broker then leaves the filtering to the client.

As in Pulsar, the domain of the expression is cut off (`persistent://`), the name is compared
without its domain and without `-partition-N`, and the expression has to match the whole name.
"""

from typing import Any

import re2  # type: ignore[import-untyped]

from daybook.wire.topics import TopicName

CHARS_MAX = 256
_MEMORY_MAX = 1 << 20  # for one compiled expression, with the states that RE2 keeps

# The package has no types.
_re2: Any = re2


def _options() -> Any:  # noqa: ANN401
    options = _re2.Options()
    options.max_mem = _MEMORY_MAX
    options.log_errors = False
    return options


class PatternError(ValueError):
    """The broker does not evaluate this expression; the message says why."""


class TopicPattern:
    """A compiled expression.  Raise PatternError for one that is not evaluated here."""

    def __init__(self, text: str) -> None:
        if len(text) > CHARS_MAX:
            raise PatternError(f"it has {len(text)} characters, and may have {CHARS_MAX}")
        self.text = text
        try:
            self._compiled = _re2.compile(_without_domain(text), _options())
        except _re2.error as error:
            reason = error.args[0]
            if isinstance(reason, bytes):
                reason = reason.decode(errors="replace")
            raise PatternError(str(reason)) from None

    def matches(self, name: str) -> bool:
        """Return True if the expression matches the whole name of a topic."""
        compared = TopicName.parse(name).base.full.partition("://")[2]
        return self._compiled.fullmatch(compared) is not None


def _without_domain(text: str) -> str:
    """Return the expression behind `persistent://`, which may be quoted by `\\Q`."""
    domain, found, rest = text.partition("://")
    if not found:
        return text
    quoted = domain.rpartition(r"\Q")[1] and r"\E" not in domain.rpartition(r"\Q")[2]
    return (r"\Q" if quoted else "") + rest
