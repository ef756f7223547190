"""Entries that were handed out and not acknowledged yet, in the order of their deadlines.

An entry whose deadline is over is delivered again.  Its deadline is the same length of time after
each delivery.  A batch is settled when all its messages are acknowledged.
"""

from daybook.clients.python.protocol.acks_in_doubt import EntryKey


class AckTimeouts:
    """One instance per topic consumer with `ack_timeout_s`."""

    __slots__ = ("_due", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._due: dict[EntryKey, float] = {}  # in the order of the deadlines

    def handed_out(self, key: EntryKey, now: float) -> None:
        """Note that the application gets an entry, perhaps again."""
        self._due.pop(key, None)
        self._due[key] = now + self._timeout_s

    def settled(self, key: EntryKey) -> None:
        """Forget an entry: it is acknowledged, or is delivered again anyhow."""
        self._due.pop(key, None)

    def settled_up_to(self, key: EntryKey) -> None:
        """Forget all entries up to this one."""
        for each in [each for each in self._due if each <= key]:
            del self._due[each]

    @property
    def deadline(self) -> float | None:
        """The earliest deadline; None if nothing waits."""
        return next(iter(self._due.values()), None)

    def expired(self, now: float) -> list[EntryKey]:
        """Forget the entries whose deadline is over, and return them in order."""
        found: list[EntryKey] = []
        for key, deadline in self._due.items():
            if deadline > now:
                break
            found.append(key)
        for key in found:
            del self._due[key]
        return sorted(found)

    def forget(self) -> None:
        """Forget everything: the broker delivers all of it again, or the position was moved."""
        self._due.clear()
