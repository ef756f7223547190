"""How much consumers may be sent: messages and bytes in a period, of a topic or a subscription.

Deliveries are taken from two balances that grow evenly with time, up to one period's worth.  An
entry is delivered as a whole, so a balance may fall below zero by the rest of one entry.  A balance
that is used up is closed.  It opens again when it has grown by a tenth of a second's worth, and not
for each single message, because each opening costs a read.

    open --take, nothing is left--> closed --grown by a step--> open

The caller asks for the `room` before it reads, delivers at least one entry if there is room, and
takes what it delivered.  So a subscription that shares a limit with others is never stuck, and all
of them wait for what was taken too much.

    passed in any time <= rate * time + one period's worth + one entry for each that shares it
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf

_STEP_S = 0.1
_WAIT_MIN_S = 0.001
_TINY = 1e-6  # Sums of floats may miss their mark by less than this.


class _Balance:
    def __init__(self, amount: int, period_s: float, now_s: float) -> None:
        self._own_per_s = amount / period_s
        self._period_s = period_s
        self._per_s = self._own_per_s
        self._left = float(amount)
        self._at_s = now_s
        self._closed_s: float | None = None  # closed since then

    @property
    def closed_s(self) -> float | None:
        return self._closed_s

    @property
    def _opens_at(self) -> float:
        return min(self._per_s * self._period_s, max(1.0, self._per_s * _STEP_S))

    def add_rate(self, per_s: float, now_s: float) -> None:
        self._grow(now_s)
        self._per_s = self._own_per_s + per_s

    def room(self, now_s: float) -> float:
        self._grow(now_s)
        if self._closed_s is not None and self.wait_s(now_s) == 0:
            self._closed_s = None
        return self._left if self._closed_s is None else 0.0

    def wait_s(self, now_s: float) -> float:
        if self._closed_s is None:
            return 0.0
        missing = self._opens_at - self._grown(now_s)
        return max(_WAIT_MIN_S, missing / self._per_s) if missing > _TINY else 0.0

    def take(self, amount: int, now_s: float) -> None:
        self._grow(now_s)
        self._left -= amount
        if self._left <= _TINY and self._closed_s is None:
            self._closed_s = now_s

    def _grown(self, now_s: float) -> float:
        passed_s = max(0.0, now_s - self._at_s)
        return min(self._per_s * self._period_s, self._left + passed_s * self._per_s)

    def _grow(self, now_s: float) -> None:
        self._left = self._grown(now_s)
        self._at_s = max(self._at_s, now_s)


@dataclass(frozen=True, slots=True)
class Room:
    """The messages and bytes that may be delivered now.

    If one of them is 0, the limit is closed.
    """

    messages: float = inf
    bytes: float = inf

    @property
    def is_closed(self) -> bool:
        return self.messages <= 0 or self.bytes <= 0

    def entries(self, wanted: int) -> int:
        """Return how many entries to read, with at least one message each."""
        return wanted if self.messages >= wanted else max(1, ceil(self.messages))

    def size(self, wanted: int) -> int:
        return wanted if self.bytes >= wanted else max(1, ceil(self.bytes))

    def fitting(self, entries: Iterable[tuple[int, int]]) -> int:
        """Return how many of the first entries may be delivered.

        `entries` has the messages and bytes of each.  The last one may exceed the room in part.
        """
        messages = size = count = 0
        for of_entry, bytes_of_entry in entries:
            if count and (messages >= self.messages or size >= self.bytes):
                break
            messages += of_entry
            size += bytes_of_entry
            count += 1
        return count


class DispatchRateLimit:
    """One instance per topic, and one per subscription, with such a policy, named by `policy`.

    An amount below 1 means no limit.  If `relative`, the rate of the producers is added to it.
    """

    def __init__(
        self,
        policy: str,
        messages: int,
        size: int,
        period_s: float,
        now_s: float,
        *,
        relative: bool = False,
    ) -> None:
        self.policy = policy
        self._words = _words(messages, size, period_s, relative=relative)
        self._relative = relative
        self._messages = _Balance(messages, period_s, now_s) if messages > 0 else None
        self._bytes = _Balance(size, period_s, now_s) if size > 0 else None

    def __str__(self) -> str:
        return f"{self.policy} is {self._words}"

    def room(self, now_s: float) -> Room:
        return Room(
            inf if self._messages is None else self._messages.room(now_s),
            inf if self._bytes is None else self._bytes.room(now_s),
        )

    def wait_s(self, now_s: float) -> float:
        """Return how long it stays closed; 0 if it is open."""
        return max((b.wait_s(now_s) for b in (self._messages, self._bytes) if b), default=0.0)

    def closed_s(self, now_s: float) -> float:
        """Return since when the limit is closed; `now_s` if it is open."""
        since = (b.closed_s for b in (self._messages, self._bytes) if b and b.wait_s(now_s))
        return min((s for s in since if s is not None), default=now_s)

    def take(self, messages: int, size: int, now_s: float) -> None:
        """Note that so much was delivered."""
        if self._messages is not None:
            self._messages.take(messages, now_s)
        if self._bytes is not None:
            self._bytes.take(size, now_s)

    def publish_rate(self, messages_per_s: float, bytes_per_s: float, now_s: float) -> None:
        """Note how much the producers of the topic send at present."""
        if self._relative:
            if self._messages is not None:
                self._messages.add_rate(messages_per_s, now_s)
            if self._bytes is not None:
                self._bytes.add_rate(bytes_per_s, now_s)


class DispatchRates:
    """The limits that count for one subscription: that of its topic, and its own."""

    def __init__(self, limits: Sequence[DispatchRateLimit]) -> None:
        assert limits
        self._limits = tuple(limits)

    def room(self, now_s: float) -> Room:
        # Each limit is asked, because it is asked that opens it.
        rooms = [limit.room(now_s) for limit in self._limits]
        return Room(min(r.messages for r in rooms), min(r.bytes for r in rooms))

    def wait_s(self, now_s: float) -> float:
        return max(limit.wait_s(now_s) for limit in self._limits)

    def strictest(self, now_s: float) -> DispatchRateLimit | None:
        """Return the limit that is closed for longest from now on; None if all are open."""
        strictest = max(self._limits, key=lambda limit: limit.wait_s(now_s))
        return strictest if strictest.wait_s(now_s) else None

    def take(self, messages: int, size: int, now_s: float) -> None:
        for limit in self._limits:
            limit.take(messages, size, now_s)


def _words(messages: int, size: int, period_s: float, *, relative: bool) -> str:
    parts = [f"{messages} messages"] if messages > 0 else []
    parts += [f"{size} bytes"] if size > 0 else []
    period = "a second" if period_s == 1 else f"in {period_s:g} s"
    more = " more than producers send" if relative else ""
    return f"{' and '.join(parts)} {period}{more}"
