"""Who owns which bundle: brokers, their sessions and guards, and the metadata store.

Requests of a session are carried out in order.  When a broker loses contact, some of what was under
way was carried out, and it hears of nothing; its session may end meanwhile, or somebody takes it
for dead and removes what it had.  What a watch has to tell comes late.  The rules: nobody says that
a bundle is his who has not seen so since he was asked, nobody serves what he does not own, records
are given up when the topics are closed; and in the end each bundle has one owner who knows it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.ownership import Answer, Event, RecordOwner
from daybook.wire.metadata.store import SessionState
from tests.storms.chance import Chance
from tests.storms.network import Network
from tests.storms.ownership_broker import Broker
from tests.storms.storm import SOME, Storm

BUNDLES = ("x", "y")
STORE, FIRST_BROKER = 0, 1
FOR_EVER = 1 << 60
ROUNDS_AT_END = 12
DELIVERIES_AT_END = 2000

Reply: TypeAlias = str  # ok, exists, no guard; ours, others, nobody; unknown, unavailable


@dataclass(frozen=True, slots=True)
class Request:
    session: int
    guard: str
    kind: str  # join, guard, create, read, watch, delete
    what: str
    event: Event


class OwnershipStorm(Storm):
    kind = "ownership"
    steps_max = 200
    wanted: ClassVar[dict[str, float]] = {
        "owned": 0.5,
        "somebody else's": 0.1,
        "released": 0.03,
        "session lost": 0.05,
        "removed while alive": 0.03,
        "contact lost": 0.1,
        "in doubt, and done": 0.02,
        "in doubt, and not done": 0.02,
        "topics dropped": 0.03,
        "two serve": 0.001,
    }

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        count = chance.one_of((1, 2, 2, 3))
        self.network = Network(chance, FIRST_BROKER + count, fifo=True)
        self.bundles = [BundleName(name) for name in BUNDLES[: chance.one_of((1, 1, 2))]]
        self.now = 0
        self.brokers = [Broker(self, f"broker {i + 1}", FIRST_BROKER + i) for i in range(count)]
        self._sessions = 0
        self._alive: set[int] = set()
        self._guards: dict[str, int] = {}
        self._owners: dict[BundleName, int] = {}
        self._since: dict[tuple[int, BundleName], int] = {}  # when a session has got a bundle
        self._until: dict[tuple[int, BundleName], int] = {}  # when a session had a bundle last
        self._watches: dict[tuple[int, BundleName], None] = {}
        self._guard_watches: dict[str, Broker] = {}
        self._unavailable = chance.one_of((0.0, 0.0, 0.1))
        for broker in self.brokers:
            self._reconnect(broker)
        self.actor(self._deliver, (1.0,))
        self.actor(self._acquire, (0.05, 0.2))
        self.actor(self._release, (0.0, 0.02, 0.1))
        self.actor(self._load, (0.05, 0.2))
        self.actor(self._lose_contact, SOME)
        self.actor(self._come_back, (0.02, 0.1, 0.3))
        self.actor(self._end_session, SOME)
        self.actor(self._remove, SOME)

    # -- what happens

    def _deliver(self) -> None:
        self.now += 1
        self.network.deliver()

    def _broker(self) -> Broker:
        self.now += 1
        return self.chance.one_of(self.brokers)

    def _bundle(self) -> BundleName:
        return self.chance.one_of(self.bundles)

    def _acquire(self) -> None:
        self._broker().acquire(self._bundle())

    def _release(self) -> None:
        self._broker().release(self._bundle())

    def _load(self) -> None:
        broker, bundle = self._broker(), self._bundle()
        broker.load(bundle)
        if sum(bundle in each.loaded for each in self.brokers) > 1:
            self.mark("two serve")

    def _lose_contact(self) -> None:
        """Of what is under way a part, from the front, is carried out yet."""
        broker = self._broker()
        if not broker.connected:
            return
        self.mark("contact lost")
        done = self.chance.below(1 + len(broker.outstanding))
        self.network.disconnect(broker.host, STORE)
        for request in list(broker.outstanding.values()):
            if request.kind in ("create", "delete", "join"):
                self.mark("in doubt, and done" if done else "in doubt, and not done")
            if done:
                done -= 1
                self._carry_out(broker, request)
        broker.lose_contact()

    def _come_back(self) -> None:
        broker = self._broker()
        if not broker.connected:
            self._reconnect(broker)

    def _reconnect(self, broker: Broker) -> None:
        broker.connected = True
        if broker.session not in self._alive:
            if broker.session:
                self.mark("session lost")
                broker.session_is(SessionState.LOST)
            self._sessions += 1
            broker.session = self._sessions
            self._alive.add(broker.session)
        broker.session_is(SessionState.CONNECTED)

    def _end_session(self) -> None:
        """The store has not heard from a broker for too long."""
        broker = self._broker()
        if not broker.connected and broker.session in self._alive:
            self.say(f"the session of {broker.name} ends")
            self._alive.discard(broker.session)
            self._forget(broker.session)

    def _remove(self) -> None:
        """Somebody takes a broker for dead: its guard, and all that it owns, go in one step."""
        broker = self._broker()
        if broker.session in self._guards.values():
            self.say(f"{broker.name} is removed")
            self.mark("removed while alive")
            self._forget(broker.session)

    def _forget(self, session: int) -> None:
        for bundle in [b for b, owner in self._owners.items() if owner == session]:
            self._set_owner(bundle, None)
        for guard in [g for g, owner in self._guards.items() if owner == session]:
            del self._guards[guard]
            watcher = self._guard_watches.pop(guard, None)
            if watcher is not None:
                self._tell(watcher, session, watcher.guard_gone, guard)

    # -- the store

    def request(self, broker: Broker, kind: str, what: str, event: Event) -> Request:
        return Request(broker.session, broker.guard, kind, what, event)

    def ask(self, broker: Broker, request_id: int, request: Request) -> None:
        self.network.send(broker.host, STORE, self._asked, broker, request_id, request)

    def _asked(self, broker: Broker, request_id: int, request: Request) -> None:
        if self._unavailable and self.chance.happens(self._unavailable):
            reply = "unavailable"
        else:
            reply = self._carry_out(broker, request)
        self.say(f"{broker.name} -> store: {request.kind} {request.what}: {reply}")
        self._tell(broker, request.session, broker.hear, request_id, reply)

    def _tell(self, broker: Broker, session: int, call: Callable[..., None], *args: object) -> None:
        """What the store has to say; of a watch also when the contact is back."""

        def arrive() -> None:
            if broker.session == session:
                call(*args)

        self.network.send(STORE, broker.host, arrive)

    def _carry_out(self, broker: Broker, request: Request) -> Reply:
        session = request.session
        if session not in self._alive:
            return "unknown"
        match request.kind:
            case "join":
                self._guards[request.what] = session
                return "ok"
            case "guard":
                if self._guards.get(request.what) == session:
                    self._guard_watches[request.what] = broker
                    return "ours"
                return "nobody"
            case "create":
                return self._create(request)
            case "delete":
                return self._delete(broker, request)
            case _:
                return self._read(request)

    def _create(self, request: Request) -> Reply:
        bundle = BundleName(request.what)
        if request.guard not in self._guards:
            return "no guard"
        if bundle in self._owners:
            return "exists"
        self._set_owner(bundle, request.session)
        return "ok"

    def _delete(self, broker: Broker, request: Request) -> Reply:
        bundle = BundleName(request.what)
        if request.guard not in self._guards:
            return "no guard"
        if bundle not in self._owners:
            return "nobody"
        loaded = self._owners[bundle] == broker.session and bundle in broker.loaded
        self.rule("O3", not loaded, f"{broker.name} gives up {bundle} and serves it")
        self._set_owner(bundle, None)
        return "ok"

    def _read(self, request: Request) -> Reply:
        bundle = BundleName(request.what)
        if request.kind == "watch":
            self._watches[request.session, bundle] = None
        owner = self._owners.get(bundle)
        if owner is None:
            return "nobody"
        return "ours" if owner == request.session else "others"

    def _set_owner(self, bundle: BundleName, session: int | None) -> None:
        before = self._owners.pop(bundle, None)
        if before is not None:
            self._until[before, bundle] = self.now
        if session is not None:
            self._owners[bundle] = session
            self._since[session, bundle], self._until[session, bundle] = self.now, FOR_EVER
        for broker in self.brokers:
            if (broker.session, bundle) in self._watches:
                del self._watches[broker.session, bundle]
                self._tell(broker, broker.session, broker.touched, bundle)

    def owner_of(self, reply: Reply) -> RecordOwner | None:
        match reply:
            case "ours":
                return RecordOwner.OURS
            case "others":
                self.mark("somebody else's")
                return RecordOwner.OTHERS
            case "nobody":
                return RecordOwner.NOBODY
            case _:
                return None

    # -- rules

    def check_owned(self, broker: Broker, bundle: BundleName, asked_at: int) -> None:
        self.mark("owned")
        had_until = self._until.get((broker.session, bundle), -1)
        told = f"{broker.name} says that {bundle} is its own, which was so until {had_until}"
        self.rule("O5", had_until >= asked_at, told)

    def check_released(self, broker: Broker, bundle: BundleName, asked_at: int) -> None:
        self.mark("released")
        loaded = bundle in broker.loaded
        self.rule("O3", not loaded, f"{broker.name} has released {bundle} and serves it")
        session = broker.session
        still = self._owners.get(bundle) == session and self._since[session, bundle] < asked_at
        self.rule("O6", not still, f"{broker.name} has released {bundle}, and it is its own")

    def finish(self) -> None:
        """All are back: each bundle has one owner, and everybody knows who that is not."""
        self._unavailable = 0.0
        wrong = "nobody was asked"
        for _ in range(ROUNDS_AT_END):
            for broker in self.brokers:
                if not broker.connected:
                    self._reconnect(broker)
                for bundle in self.bundles:
                    broker.acquire(bundle)
            self.now += 1
            self.network.deliver_all(DELIVERIES_AT_END)
            wrong = self._what_is_wrong()
            if not wrong:
                return
        self.rule("L4", False, wrong)

    def _what_is_wrong(self) -> str:
        for bundle in self.bundles:
            owners = [broker for broker in self.brokers if broker.machine.owns(bundle)]
            if len(owners) != 1:
                return f"{bundle} is owned by {', '.join(b.name for b in owners) or 'nobody'}"
            (owner,) = owners
            if self._owners.get(bundle) != owner.session:
                return f"{owner.name} says that it owns {bundle}, the store does not"
            if not owner.machine.may_load(bundle):
                return f"{owner.name} cannot load topics of {bundle}"
            for broker in self.brokers:
                if broker is not owner and broker.machine.state_of(bundle) is not None:
                    return f"{broker.name}: {bundle} is {broker.machine.state_of(bundle)}"
                wanted = Answer.OURS if broker is owner else Answer.OTHERS
                if broker.answers[bundle] is not wanted:
                    return f"{broker.name} is told {broker.answers[bundle].name} of {bundle}"
        return ""
