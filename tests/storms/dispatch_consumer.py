"""A consumer in a storm over a subscription, and the messages that it gets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daybook.broker.protocol.dispatch.places import Place

if TYPE_CHECKING:
    from tests.storms.dispatch import DispatchStorm


@dataclass(frozen=True, slots=True)
class Message:
    """An entry of the log: `messages` of them, due at `at_ms`; or a chunk, if it has a `group`.

    `key` counts on key_shared subscriptions.
    """

    index: int
    place: Place
    messages: int
    at_ms: int
    group: str | None
    ends: bool
    key: int = 0

    @property
    def all(self) -> int:
        """Return one bit for each of its messages."""
        return (1 << self.messages) - 1


class Consumer:
    """A consumer; `permits`, `holds`, `active` and `writable` are the broker's view of it."""

    def __init__(self, storm: "DispatchStorm", key: int, priority: int) -> None:
        self.storm = storm
        self.key = key
        self.name = f"c{key}"
        self.priority = priority
        self.alive = True
        self.permits = 0
        self.holds: dict[Place, int] = {}  # messages by entry; only if shared
        self.active = True
        self.writable = True
        self._inbox: dict[Place, int] = {}  # entries, with their unacknowledged messages as bits

    def take(self, place: Place, pending: int) -> None:
        if self.alive:
            self._inbox[place] = pending

    def flow(self, messages: int) -> None:
        self._send(self.storm.hear_flow, messages)

    def ack(self) -> None:
        """Acknowledge an entry that it has, some of its messages, or everything up to it."""
        if not self._inbox:
            return
        storm, chance = self.storm, self.storm.chance
        place = chance.one_of(list(self._inbox))
        if not storm.shared and chance.happens(0.3):
            for earlier in [each for each in self._inbox if each <= place]:
                del self._inbox[earlier]
            self._send(storm.hear_ack_up_to, place)
            return
        chunks = self._chunks_with(place)
        left = self._inbox[place] & chance.below(self._inbox[place] + 1)
        if left and left != self._inbox[place] and chunks == [place]:
            self._inbox[place] = left
            self._send(storm.hear_ack, place, left)
            return
        for each in chunks:
            del self._inbox[each]
            self._send(storm.hear_ack, each, 0)

    def ack_all(self) -> None:
        for place in list(self._inbox):
            del self._inbox[place]
            self._send(self.storm.hear_ack, place, 0)

    def give_back(self) -> None:
        if not self._inbox:
            return
        places: list[Place] = []
        if self.storm.chance.happens(0.7):
            places = self._chunks_with(self.storm.chance.one_of(list(self._inbox)))
            if not places:
                return
        for place in places or list(self._inbox):
            del self._inbox[place]
        self._send(self.storm.hear_give_back, places)

    def _chunks_with(self, place: Place) -> list[Place]:
        """Return the chunks of this entry's message; none if its last chunk has not come."""
        message = self.storm.message(place)
        if message.group is None:
            return [place]
        chunks = [p for p in self._inbox if self.storm.message(p).group == message.group]
        complete = any(self.storm.message(p).ends for p in chunks)
        return chunks if complete else []

    def _send(self, call: Callable[..., None], *args: object) -> None:
        def arrive() -> None:
            if self.alive:
                call(self, *args)

        self.storm.network.send(self.key, 0, arrive)
