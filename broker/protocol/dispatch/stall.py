"""Pure: when a subscription counts as stalled.

A subscription *waits* if it has something that could be sent, and a consumer with permits.  It is
stalled if it waits at each sample for `stalled_s`, and nothing was sent meanwhile.  The samples of
an idle subscription show that it does not wait, so a message that is published into silence does
not make the silence count.

Nothing here is changed by deliveries: a sample compares the number of messages that were ever sent
with that of the sample before.  So the watch costs nothing for a message, and no flag can stay set.
"""


class StallWatch:
    """One instance per subscription."""

    __slots__ = ("_sent", "_since_s", "_told")

    def __init__(self) -> None:
        self._sent = -1
        self._since_s: float | None = None  # waiting since this sample, and nothing was sent
        self._told = False

    def sample(self, now_s: float, *, waits: bool, sent: int) -> float | None:
        """Note the state, and return for how long the subscription waits; None if it does not."""
        if not waits or sent != self._sent:
            # The deliveries since the last sample are in the past by now.
            self._sent, self._told = sent, False
            self._since_s = now_s if waits else None
            return 0.0 if waits else None
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s

    def stalls(self, stalled_s: float, now_s: float) -> bool:
        """Return True if the last sample showed a stall."""
        return self._since_s is not None and now_s - self._since_s >= stalled_s

    def first_told(self) -> bool:
        """Return True at the first call for one stall."""
        told, self._told = self._told, True
        return not told
