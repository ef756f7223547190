"""The messages that brokers may have acknowledged by a policy, and no others.

A policy counts from the moment at which somebody asked for it.  A change that was refused, or a
policy that was removed, may have had its effect, so of each kind the strongest one counts.
"""

from collections.abc import Iterator

from tests.history.events import Copy
from tests.history.policy_events import Expired, MayEvict, MayExpire
from tests.history.record import Record, parent
from tests.history.subscriptions import Subscription

_NEVER = -1


class Policies:
    def __init__(self, record: Record) -> None:
        # By topic and subscription, or "": the ages in force.
        self._ages_ns: dict[tuple[str, str], list[int]] = {}
        # The same: when the youngest message was sent that has expired by hand.
        self._until_ns: dict[tuple[str, str], int] = {}
        self._kept: dict[str, int] = {}
        self._record = record
        self._sizes: dict[tuple[int, int], int] = {}

    def note(self, event: MayExpire | Expired | MayEvict, at_ns: int) -> None:
        match event:
            case MayExpire(topic, age_s, subscription):
                self._ages_ns.setdefault((topic, subscription), []).append(round(age_s * 1e9))
            case Expired(topic, age_s, subscription):
                key, age_ns = (topic, subscription), round(age_s * 1e9)
                self._ages_ns[key].remove(age_ns)
                self._until_ns[key] = max(at_ns - age_ns, self._until_ns.get(key, _NEVER))
            case MayEvict(topic, bytes_behind):
                self._kept[topic] = min(bytes_behind, self._kept.get(topic, bytes_behind))

    def expired_until(self, topic: str, name: str, at_ns: int) -> int:
        """Return when the youngest message was sent that may have expired; -1 if there is none."""
        return max(self._until(topic, name, at_ns), default=_NEVER)

    def evicts(self, topic: str) -> bool:
        return bool(self._kept) and (topic in self._kept or parent(topic) in self._kept)

    def _until(self, topic: str, name: str, at_ns: int) -> Iterator[int]:
        for each in (topic, parent(topic)) if self._ages_ns else ():
            for of in (name, ""):
                yield self._until_ns.get((each, of), _NEVER)
                yield from (at_ns - age_ns for age_ns in self._ages_ns.get((each, of), ()))

    def apply(self, subscription: Subscription, name: str, at_ns: int) -> None:
        """Free what the policies may have acknowledged until now."""
        if not self._ages_ns and not self._kept:
            return
        topic = subscription.log.topic
        until_ns = self.expired_until(topic, name, at_ns)
        if until_ns >= 0:
            subscription.free_until(until_ns)
        if self.evicts(topic):
            kept = self._kept.get(topic, self._kept.get(parent(topic), 0))
            subscription.owed.free_before(self._evicted(subscription, kept, at_ns))

    def _evicted(self, subscription: Subscription, kept: int, at_ns: int) -> int:
        """Return the first message of the log that has too few bytes behind it to be evicted."""
        sizes, reads = self._of_entries(), subscription.log.reads
        largest = max((sizes.get(read.position[:2], 0) for read in reads), default=0)
        behind, last = 0, (-1, -1)
        for index in range(len(reads) - 1, -1, -1):
            entry = reads[index].position[:2]
            if behind + largest >= kept:
                return index + 1
            if entry != last and subscription.began_until(index, at_ns):
                behind += sizes.get(entry, 0)
                last = entry
        return 0

    def _of_entries(self) -> dict[tuple[int, int], int]:
        if not self._sizes:
            self._sizes = {
                (event.ledger, event.entry): event.size
                for event in (stamped.event for stamped in self._record.events)
                if isinstance(event, Copy) and event.found == "yes"
            }
        return self._sizes
