"""The producers of one connection, by the ids that the client gave them.

    (nothing) --Open--> OPENING --Opened--> OPEN --CloseAsked--> CLOSING --Drained--> (nothing)
                         |   | OpenFailed     | Dropped            | Dropped
              CloseAsked |   +--> (nothing)   +--------------------+--> (nothing), SENDs ignored
                         +--> UNDOING --OpenFailed or Opened--> (nothing)

A close that comes while the producer is being opened undoes the opening.  The close is answered
when the opening has certainly ended, so a later request of the client finds no trace of it.

A producer that is opened again with a larger epoch, or while it is being closed, replaces the
earlier one: the client has lost track of that one, and repeats the sends without a receipt.  After
the broker has dropped a producer, SENDs for it are ignored for a while, because the client did not
know yet.  A SEND for any other unknown producer breaks the protocol.

The number of an *attempt* is never used twice.  The result of an attempt is void unless the attempt
is the latest one of its id.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, assert_never

from daybook.wire.proto import pulsar_pb2 as pb

CLOSE_REQUESTS_MAX = 16  # per producer, that wait to be answered


class ProducerState(Enum):
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()  # while its outstanding sends are being stored
    UNDOING = auto()  # closed before it was open


class Sending(Enum):
    """A decision about one SEND."""

    TAKE = auto()
    IGNORE = auto()
    VIOLATION = auto()


# -- events


@dataclass(frozen=True, slots=True)
class Open:
    producer_id: int
    request_id: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    producer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class OpenFailed:
    producer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CloseAsked:
    producer_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The producer has no outstanding sends."""

    producer_id: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The topic has closed the producer."""

    producer_id: int
    now_s: float


Event: TypeAlias = Open | Opened | OpenFailed | CloseAsked | Drained | Dropped


# -- effects


@dataclass(frozen=True, slots=True)
class Attach:
    """Ask the topic to admit the producer, and then report `Opened` or `OpenFailed`."""

    producer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Cancel an attempt, which then fails.  Its request is answered with an error."""

    producer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Report `Drained` when the producer has no outstanding sends."""

    producer_id: int


@dataclass(frozen=True, slots=True)
class Detach:
    """Take the producer off its topic.  Its outstanding sends get no receipt."""

    producer_id: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Answer a CLOSE_PRODUCER with SUCCESS."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Answer with PRODUCER_SUCCESS once more, because the producer is open already."""

    producer_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Refuse:
    request_id: int
    code: int
    reason: str


Effect: TypeAlias = Attach | Abort | Drain | Detach | Confirm | Repeat | Refuse


@dataclass(slots=True)
class _Producer:
    state: ProducerState
    attempt: int
    epoch: int
    close_requests: list[int]


class ProducingProtocol:
    """One instance per connection.

    SENDs for a dropped producer are ignored for `ignore_s`.
    """

    def __init__(self, *, producers_max: int, ignore_s: float) -> None:
        self._producers: dict[int, _Producer] = {}
        # By producer id: the time until which SENDs for the dropped producer are ignored.
        self._dropped: dict[int, float] = {}
        self._attempts = 0
        self._producers_max = producers_max
        self._ignore_s = ignore_s

    def __len__(self) -> int:
        return len(self._producers)

    def state_of(self, producer_id: int) -> ProducerState | None:
        producer = self._producers.get(producer_id)
        return None if producer is None else producer.state

    def step(self, event: Event) -> list[Effect]:
        match event:
            case Open():
                return self._open(event)
            case Opened(producer_id, attempt):
                producer = self._producers.get(producer_id)
                if producer is None or producer.attempt != attempt:
                    return []
                return self._opened(producer_id, producer)
            case OpenFailed(producer_id, attempt):
                producer = self._producers.get(producer_id)
                if producer is None or producer.attempt != attempt:
                    return []
                del self._producers[producer_id]
                return [*map(Confirm, producer.close_requests)]
            case CloseAsked(producer_id, request_id):
                return self._close(producer_id, request_id)
            case Drained(producer_id):
                return self._drained(producer_id)
            case Dropped(producer_id, now_s):
                return self._drop(producer_id, now_s)
            case _:
                assert_never(event)

    def sending(self, producer_id: int, now_s: float) -> Sending:
        """Return what to do with a SEND."""
        producer = self._producers.get(producer_id)
        if producer is not None:
            # A SEND that comes during the opening is meant for the dropped producer before it.
            return Sending.TAKE if producer.state is ProducerState.OPEN else Sending.IGNORE
        if now_s < self._dropped.get(producer_id, now_s):
            return Sending.IGNORE
        return Sending.VIOLATION

    def _open(self, event: Open) -> list[Effect]:
        producer_id, request_id = event.producer_id, event.request_id
        known = self._producers.get(producer_id)
        effects: list[Effect] = []
        if known is None:
            if len(self._producers) >= self._producers_max:
                reason = f"a connection has at most {self._producers_max} producers"
                return [Refuse(request_id, pb.NotAllowedError, reason)]
        elif known.state in (ProducerState.OPENING, ProducerState.UNDOING):
            what = "created" if known.state is ProducerState.OPENING else "closed"
            reason = f"producer {producer_id} is being {what}"
            return [Refuse(request_id, pb.ServiceNotReady, reason)]
        elif known.state is ProducerState.OPEN and event.epoch <= known.epoch:
            return [Repeat(producer_id, request_id)]
        else:
            # The earlier producer is replaced, so requests to close it are answered, too.
            effects = [Detach(producer_id), *map(Confirm, known.close_requests)]
        self._attempts += 1
        self._dropped.pop(producer_id, None)
        self._producers[producer_id] = _Producer(
            ProducerState.OPENING, self._attempts, event.epoch, []
        )
        return [*effects, Attach(producer_id, self._attempts)]

    def _opened(self, producer_id: int, producer: _Producer) -> list[Effect]:
        if producer.state is ProducerState.UNDOING:  # It was too late to cancel it.
            del self._producers[producer_id]
            return [Detach(producer_id), *map(Confirm, producer.close_requests)]
        assert producer.state is ProducerState.OPENING
        producer.state = ProducerState.OPEN
        return []

    def _close(self, producer_id: int, request_id: int) -> list[Effect]:
        producer = self._producers.get(producer_id)
        if producer is None:
            return [Confirm(request_id)]
        match producer.state:
            case ProducerState.OPENING:
                producer.state = ProducerState.UNDOING
                producer.close_requests.append(request_id)
                return [Abort(producer_id, producer.attempt)]
            case ProducerState.OPEN:
                producer.state = ProducerState.CLOSING
                producer.close_requests.append(request_id)
                return [Drain(producer_id)]
            case ProducerState.CLOSING | ProducerState.UNDOING:
                if len(producer.close_requests) >= CLOSE_REQUESTS_MAX:
                    reason = f"producer {producer_id} is being closed"
                    return [Refuse(request_id, pb.ServiceNotReady, reason)]
                producer.close_requests.append(request_id)
                return []
            case _:
                assert_never(producer.state)

    def _drained(self, producer_id: int) -> list[Effect]:
        producer = self._producers.get(producer_id)
        if producer is None or producer.state is not ProducerState.CLOSING:
            return []
        del self._producers[producer_id]
        return [Detach(producer_id), *map(Confirm, producer.close_requests)]

    def _drop(self, producer_id: int, now_s: float) -> list[Effect]:
        producer = self._producers.pop(producer_id, None)
        # Ids whose time is over are removed here, so that the table stays small.
        self._dropped = {i: until for i, until in self._dropped.items() if until > now_s}
        self._dropped[producer_id] = now_s + self._ignore_s
        return [] if producer is None else [*map(Confirm, producer.close_requests)]
