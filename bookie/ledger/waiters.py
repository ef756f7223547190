"""Who waits until the entries of a ledger have got that far."""

import trio


class EntryWaiters:
    """Tasks that each wait for one entry; nothing is kept for entries that nobody waits for."""

    def __init__(self) -> None:
        self._events: dict[int, list[trio.Event]] = {}

    async def wait(self, entry_id: int) -> None:
        """Return when the entry is `reached`, or nobody can wait any more: look which."""
        event = trio.Event()
        events = self._events.setdefault(entry_id, [])
        events.append(event)
        try:
            await event.wait()
        except trio.Cancelled:
            events.remove(event)
            if not events and self._events.get(entry_id) is events:
                del self._events[entry_id]
            raise

    def reached(self, first: int, last: int) -> None:
        if self._events:
            for entry_id in range(first, last + 1):
                for event in self._events.pop(entry_id, ()):
                    event.set()

    def let_all_go(self) -> None:
        for events in self._events.values():
            for event in events:
                event.set()
        self._events.clear()
