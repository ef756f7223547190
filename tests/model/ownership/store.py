"""The metadata store, as far as ownership uses it: its state, and the outcomes of requests.

The state has, for each broker, whether its session lives, and the term of its guard if that stands;
and the broker whose session made the record of the bundle.  All of these are ephemeral.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from daybook.broker.protocol.ownership import RecordOwner

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Seat:
    """The state of one broker in the store and in the network.

    `had`: the record was this broker's at some time in this session; `late`: a request without an
    answer has made it.  `reborn`: the broker knows that its session was lost, and not yet that
    there is a new one.
    """

    alive: bool = True
    up: bool = False
    reborn: bool = False
    guard: int = 0  # the term of its guard; 0 if there is none
    watches_guard: int = 0  # the term of the guard that it watches
    watches_record: bool = False
    had: bool = False
    late: bool = False
    serves: bool = False  # the broker has topics of the bundle


@dataclass(frozen=True, slots=True)
class Store:
    seats: tuple[Seat, ...]
    owner: int = NOBODY  # the number of the broker whose present session made the record
    offered: bool = False  # a ticket for this very record is out

    def with_seat(self, broker: int, seat: Seat) -> "Store":
        seats = list(self.seats)
        seats[broker] = seat
        return replace(self, seats=tuple(seats))

    def owner_for(self, broker: int) -> RecordOwner:
        if self.owner == NOBODY:
            return RecordOwner.NOBODY
        return RecordOwner.OURS if self.owner == broker else RecordOwner.OTHERS


class Kind(Enum):
    """The kinds of requests.  CLOSE does not go to the store: it closes topics."""

    JOIN = auto()
    GUARD = auto()
    CREATE = auto()
    READ = auto()
    DELETE = auto()
    GIVE = auto()  # ask the successor, which waits for its answer
    TAKE = auto()
    CLOSE = auto()


@dataclass(frozen=True, slots=True)
class Request:
    """A request; `number` is a term, or that of an ask; `guard` is the term that must stand."""

    kind: Kind
    number: int
    guard: int = 0

    @property
    def writes(self) -> bool:
        return self.kind in (Kind.CREATE, Kind.DELETE, Kind.TAKE)

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
            newest = max(seat.watches_guard, request.number)  # guards of other terms differ in name
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
            return replace(made, owner=broker, offered=False), Reply.DONE
        case Kind.TAKE:
            if not seat.guard or seat.guard != request.guard or not store.offered:
                return store, Reply.REFUSED
            taken = store.with_seat(broker, replace(seat, had=True, late=late))
            return replace(taken, owner=broker, offered=False), Reply.DONE
        case Kind.GIVE:
            # The ticket is out as soon as the successor was asked; it counts for this record only.
            gone = store.owner not in (NOBODY, broker)
            return store, Reply.DONE if gone else Reply.GONE
        case Kind.DELETE:
            if not seat.guard or seat.guard != request.guard or store.owner != broker:
                return store, Reply.REFUSED  # The version of the guard shows that it was taken.
            return replace(store, owner=NOBODY, offered=False), Reply.DONE
        case Kind.CLOSE:
            return store, Reply.DONE


def without(store: Store, broker: int, *, session: bool) -> Store:
    """Remove guard and record of a broker, for a peer or because its session ended."""
    seat = replace(store.seats[broker], guard=0, alive=not session)
    removed = store.with_seat(broker, seat)
    gone = replace(removed, owner=NOBODY, offered=False)
    return gone if store.owner == broker else removed
