"""How much the producers of a topic may send: messages and bytes a second.

Each entry is taken from two balances that grow with time, up to one second's worth.  A balance
may fall below zero, because an entry is appended as a whole; then producers wait until it is not.
"""


class _Balance:
    def __init__(self, per_s: float, now_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at_s = now_s

    def take(self, amount: float, now_s: float) -> None:
        grown = max(0.0, now_s - self._at_s) * self._per_s
        self._left = min(self._per_s, self._left + grown) - amount
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self._at_s - self._left / self._per_s - now_s) if self._left < 0 else 0.0


class PublishRateLimit:
    """One instance per topic with such a policy.  A limit below 1 means no limit."""

    def __init__(self, messages_per_s: int, bytes_per_s: int, now_s: float) -> None:
        self._messages = _Balance(messages_per_s, now_s) if messages_per_s > 0 else None
        self._bytes = _Balance(bytes_per_s, now_s) if bytes_per_s > 0 else None

    def take(self, messages: int, size: int, now_s: float) -> None:
        """Note that an entry was appended."""
        if self._messages is not None:
            self._messages.take(messages, now_s)
        if self._bytes is not None:
            self._bytes.take(size, now_s)

    def wait_s(self, now_s: float) -> float:
        """Return how long producers have to wait before they send more."""
        return max((b.wait_s(now_s) for b in (self._messages, self._bytes) if b), default=0.0)
