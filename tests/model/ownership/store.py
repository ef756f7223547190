"""What the metadata store holds of ownership, and what it does with a request.

Only what ownership looks at: for each broker whether its session lives and the term of its guard,
if that stands; and whose session the record of the bundle belongs to.  All of it is ephemeral.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from daybook.broker.protocol.ownership import RecordOwner

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Seat:
    """One broker, as the store and the network know it.

    `had`: the record was this broker's at some time in this session; `late`: a request that nobody
    waited for any more has made it.  `reborn`: its session was
    lost, and it has been told so, and not yet that there is a new one.
    """

    alive: bool = True
    up: bool = False
    reborn: bool = False
    guard: int = 0  # its term; 0 for none
    watches_guard: int = 0  # of which term
    watches_record: bool = False
    had: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    seats: tuple[Seat, ...]
    owner: int = NOBODY  # the broker, by number, whose present session made the record

    def with_seat(self, broker: int, seat: Seat) -> "Store":
        seats = list(self.seats)
        seats[broker] = seat
        return replace(self, seats=tuple(seats))

    def owner_for(self, broker: int) -> RecordOwner:
        if self.owner == NOBODY:
            return RecordOwner.NOBODY
        return RecordOwner.OURS if self.owner == broker else RecordOwner.OTHERS


class Kind(Enum):
    """Requests.  CLOSE is not the store's: topics are being closed."""

    JOIN = auto()
    GUARD = auto()
    CREATE = auto()
    READ = auto()
    DELETE = auto()
    CLOSE = auto()


@dataclass(frozen=True, slots=True)
class Request:
    """`number` is the term, or how many asks ago; `guard` the term of the guard to be checked."""

    kind: Kind
    number: int
    guard: int = 0

    @property
    def writes(self) -> bool:
        return self.kind in (Kind.CREATE, Kind.DELETE)

    def __str__(self) -> str:
        return self.kind.name.lower()


class Reply(Enum):
    DONE = auto()
    REFUSED = auto()  # the guard, or the record, is not there
    EXISTS = auto()
    GONE = auto()  # the guard does not stand


def carry_out(
    store: Store, broker: int, request: Request, *, late: bool = False
) -> tuple[Store, Reply | RecordOwner]:
    seat = store.seats[broker]
    match request.kind:
        case Kind.JOIN:
            return store.with_seat(broker, replace(seat, guard=request.number)), Reply.DONE
        case Kind.GUARD:
            newest = max(seat.watches_guard, request.number)  # an older one has another name
            watching = store.with_seat(broker, replace(seat, watches_guard=newest))
            return watching, Reply.DONE if seat.guard == request.number else Reply.GONE
        case Kind.READ:
            watching = store.with_seat(broker, replace(seat, watches_record=True))
            return watching, store.owner_for(broker)
        case Kind.CREATE:
            if not seat.guard or seat.guard != request.guard:
                return store, Reply.REFUSED
            if store.owner != NOBODY:
                return store, Reply.EXISTS
            made = store.with_seat(broker, replace(seat, had=True, late=late))
            return replace(made, owner=broker), Reply.DONE
        case Kind.DELETE:
            if not seat.guard or seat.guard != request.guard or store.owner == NOBODY:
                return store, Reply.REFUSED
            return replace(store, owner=NOBODY), Reply.DONE
        case Kind.CLOSE:
            return store, Reply.DONE


def without(store: Store, broker: int, *, session: bool) -> Store:
    """Guard and record of a broker are removed: by a peer, or because its session ended."""
    seat = replace(store.seats[broker], guard=0, alive=not session)
    removed = store.with_seat(broker, seat)
    return replace(removed, owner=NOBODY) if store.owner == broker else removed
