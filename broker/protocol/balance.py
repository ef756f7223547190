"""Which broker gets an unowned bundle, and which bundle moves or is split.  The module is pure.

**Placement** chooses the broker with the fewest bundles, then the fewest topics.  A hash of bundle
and broker (rendezvous hashing) breaks ties.  So brokers that decide independently tend to decide
alike, and equal brokers get equal shares.  A wrong guess costs a redirect, never more.

**Balancing** compares loads.  The load of a bundle is one number (`BundleLoad.weight`), made of its
messages and bytes a second, topics and clients, and a little for its being there; that of a broker
is the sum of its bundles.  At most one bundle moves in a decision, from the broker with the highest
load to the one with the lowest, and only if all of this holds:

    the difference    is above a share of the mean, and above an absolute number
    the bundle        makes the difference smaller; the one that makes it smallest is chosen
    cool-down         neither the bundle nor either broker was part of a move shortly before
    quiet             no broker came or went shortly before, and the store was in reach

A move makes the sum of the squares of all loads smaller.  So under a constant load moves end, and
no bundle goes back and forth.  After a move its new owner needs a while to measure the load of the
bundle.  Until the cool-down of the bundle is over, it counts with the load that it had before.

A bundle above one of the limits (Pulsar's defaults) is split first, so that its parts can move.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from zlib import crc32

from daybook.broker.protocol.bundles import BundleName, namespace_of


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of a broker, as far as the deciding broker knows it."""

    broker_id: str
    bundles: int
    topics: int = 0


def place(bundle: BundleName, brokers: Iterable[BrokerLoad]) -> str | None:
    """Return the id of the broker that should own `bundle`; None if there is no broker."""
    chosen = min(
        brokers,
        key=lambda load: (load.bundles, load.topics, _score(bundle, load.broker_id)),
        default=None,
    )
    return None if chosen is None else chosen.broker_id


def _score(bundle: BundleName, broker_id: str) -> int:
    return crc32(f"{bundle} {broker_id}".encode())


# -- balancing

# So much of each makes a load of 1.
_MESSAGES = 1000.0  # a second, in and out
_BYTES = 1024.0 * 1024.0  # a second, in and out
_TOPICS = 100.0
_CLIENTS = 100.0  # producers and consumers
_BUNDLE = 0.1  # the load of a bundle without topics: idle brokers are balanced by their bundles


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """The load of one bundle; rates are per second, in and out."""

    messages: float = 0.0
    bytes: float = 0.0
    topics: int = 0
    clients: int = 0

    @property
    def weight(self) -> float:
        return (
            _BUNDLE
            + self.messages / _MESSAGES
            + self.bytes / _BYTES
            + self.topics / _TOPICS
            + self.clients / _CLIENTS
        )


IDLE = BundleLoad()


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    threshold_percent: float = 10.0  # a share of the mean load
    threshold: float = 0.15  # a difference of one idle bundle is below it, one of two is above
    bundle_cool_down_s: float = 600.0
    broker_cool_down_s: float = 60.0
    quiet_s: float = 60.0  # after a broker came or went
    # Above one of these limits a bundle is split.
    topics_max: int = 1000
    clients_max: int = 1000
    messages_max: float = 30_000.0
    bytes_max: float = 100 * 1024.0 * 1024.0
    bundles_max: int = 128  # in one namespace


_NONE = BundleName("")


class Kind(Enum):
    MOVE = "move"
    SPLIT = "split"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision, and the reason for it in words."""

    kind: Kind
    reason: str
    bundle: BundleName = _NONE
    source: str = ""
    target: str = ""


Loads = Mapping[str, Mapping[BundleName, BundleLoad]]
"""The bundles of each live broker, by its id, and their loads."""


class Balance:
    """The decisions of the leader, and the moves that it remembers."""

    def __init__(self, settings: BalanceSettings) -> None:
        self.settings = settings
        self._brokers: tuple[str, ...] | None = None
        self._quiet_until_s = 0.0
        self._moved: dict[BundleName, tuple[float, BundleLoad]] = {}  # until when, and its load
        self._busy: dict[str, float] = {}  # brokers, and until when they rest
        self._unsplit: dict[BundleName, float] = {}  # could not be split; until when they stay

    def doubt(self, now_s: float) -> None:
        """The loads or brokers could not be read: what is known may be wrong."""
        self._quiet_until_s = now_s + self.settings.quiet_s

    def failed(self, decision: Decision, now_s: float) -> None:
        """The decision was not carried out: do not ask for the same split again at once.

        A bundle that cannot be split would keep all others where they are.
        """
        if decision.kind is Kind.SPLIT:
            self._unsplit[decision.bundle] = now_s + self.settings.bundle_cool_down_s

    def decide(self, sessions: Iterable[str], loads: Loads, now_s: float) -> Decision:
        """Decide what to do now.  `sessions` tell whether a broker has come, gone or restarted."""
        self._forget(now_s)
        present = tuple(sorted(sessions))
        if present != self._brokers:
            known, self._brokers = self._brokers, present
            self.doubt(now_s)
            if known is not None:
                return Decision(Kind.NOTHING, "a broker came or went: nothing moves for a while")
        if now_s < self._quiet_until_s:
            wait_s = self._quiet_until_s - now_s
            return Decision(Kind.NOTHING, f"the cluster has to be quiet for {wait_s:.0f} s more")
        decision = self.look(loads)
        match decision.kind:
            case Kind.MOVE:
                self._remember(decision, loads, now_s)
            case Kind.SPLIT:
                until_s = now_s + self.settings.broker_cool_down_s
                self._busy[decision.source] = until_s
            case _:
                pass
        return decision

    def look(self, loads: Loads) -> Decision:
        """Return what would be done, and remember nothing."""
        loads = {broker: self._with_moved(bundles) for broker, bundles in loads.items()}
        return self._hot(loads) or self._move(loads)

    def _forget(self, now_s: float) -> None:
        self._moved = {b: m for b, m in self._moved.items() if m[0] > now_s}
        self._busy = {broker: until for broker, until in self._busy.items() if until > now_s}
        self._unsplit = {b: until for b, until in self._unsplit.items() if until > now_s}

    def _remember(self, decision: Decision, loads: Loads, now_s: float) -> None:
        load = loads[decision.source][decision.bundle]
        self._moved[decision.bundle] = now_s + self.settings.bundle_cool_down_s, load
        for broker in (decision.source, decision.target):
            self._busy[broker] = now_s + self.settings.broker_cool_down_s

    def _with_moved(self, bundles: Mapping[BundleName, BundleLoad]) -> dict[BundleName, BundleLoad]:
        """Return the loads; a bundle that has moved has at least the load that it had before."""
        found = dict(bundles)
        for bundle in found.keys() & self._moved.keys():
            found[bundle] = max(found[bundle], self._moved[bundle][1], key=lambda load: load.weight)
        return found

    # -- splitting

    def _hot(self, loads: Loads) -> Decision | None:
        counts: dict[str, int] = {}
        for bundles in loads.values():
            for bundle in bundles:
                namespace = namespace_of(bundle)
                counts[namespace] = counts.get(namespace, 0) + 1
        for broker in sorted(loads):
            for bundle, load in sorted(loads[broker].items()):
                room = counts[namespace_of(bundle)] < self.settings.bundles_max
                why = self._why_hot(load)
                may = broker not in self._busy and bundle not in self._unsplit
                if why and load.topics > 1 and room and may:
                    return Decision(Kind.SPLIT, why, bundle, broker)
        return None

    def _why_hot(self, load: BundleLoad) -> str:
        limits = self.settings
        for what, has, most in (
            ("topics", load.topics, limits.topics_max),
            ("clients", load.clients, limits.clients_max),
            ("messages a second", load.messages, limits.messages_max),
            ("bytes a second", load.bytes, limits.bytes_max),
        ):
            if has > most:
                return f"the bundle has {has:.0f} {what}, and {most:.0f} are its limit"
        return ""

    # -- moving

    def _move(self, loads: Loads) -> Decision:
        if len(loads) < 2:
            return Decision(Kind.NOTHING, "there is no other broker")
        totals = {broker: total(bundles) for broker, bundles in loads.items()}
        order = sorted(totals, key=lambda broker: (totals[broker], broker))
        target, source = order[0], order[-1]
        difference = totals[source] - totals[target]
        mean = sum(totals.values()) / len(totals)
        wanted = max(self.settings.threshold, mean * self.settings.threshold_percent / 100)
        loaded = f"{source} has a load of {totals[source]:.2f} and {target} {totals[target]:.2f}"
        if difference <= wanted:
            return Decision(Kind.NOTHING, f"{loaded}: at most {wanted:.2f} apart")
        resting = sorted({source, target} & self._busy.keys())
        if resting:
            why = f"{loaded}, but {' and '.join(resting)} had a move shortly before"
            return Decision(Kind.NOTHING, why)
        fitting = {
            bundle: load.weight
            for bundle, load in loads[source].items()
            if load.weight < difference and bundle not in self._moved
        }
        if not fitting:
            why = f"{loaded}, but no bundle would make them more even"
            return Decision(Kind.NOTHING, why)
        # The one that leaves the smallest difference.
        chosen = min(
            fitting,
            key=lambda bundle: (
                abs(difference - 2 * fitting[bundle]),
                _score(bundle, target),
                bundle,
            ),
        )
        why = f"{loaded}: more than {wanted:.2f} apart; the bundle has {fitting[chosen]:.2f}"
        return Decision(Kind.MOVE, why, chosen, source, target)


def total(bundles: Mapping[BundleName, BundleLoad]) -> float:
    """Return the load of a broker with these bundles."""
    return sum(load.weight for load in bundles.values())
