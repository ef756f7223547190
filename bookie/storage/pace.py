"""How fast something may go that nobody waits for."""

import trio


class Pace:
    """At most so many bytes a second over any long time; nothing is saved up while idle."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def spend(self, size: int) -> None:
        """Return when this many bytes more may be read or written."""
        now = trio.current_time()
        self._free_at = max(now, self._free_at) + size / self._bytes_per_s
        await trio.sleep_until(self._free_at)
