"""The producers of one connection, by the ids that the client gave them.

    (nothing) --open--> OPENING --opened--> OPEN --close--> CLOSING --drained--> (nothing)
                         |   | open_failed    | dropped       | dropped
                   close |   +--> (nothing)   +---------------+--> (nothing), SENDs ignored
                         +--> UNDOING --open_failed or opened--> (nothing)

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


# -- effects


@dataclass(frozen=True, slots=True)
class Attach:
    """Ask the topic to admit the producer, and then call `opened` or `open_failed`."""

    producer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Cancel an attempt, which then fails.  Its request is answered with an error."""

    producer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Call `drained` when the producer has no outstanding sends."""

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

    def sending(self, producer_id: int, now_s: float) -> Sending:
        """Return what to do with a SEND."""
        producer = self._producers.get(producer_id)
        if producer is not None:
            # A SEND that comes during the opening is meant for the dropped producer before it.
            return Sending.TAKE if producer.state is ProducerState.OPEN else Sending.IGNORE
        if now_s < self._dropped.get(producer_id, now_s):
            return Sending.IGNORE
        return Sending.VIOLATION

    # -- inputs

    def open(self, producer_id: int, request_id: int, epoch: int = 0) -> list[Effect]:
        """Open the producer for which the client asks, or refuse it."""
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
        elif known.state is ProducerState.OPEN and epoch <= known.epoch:
            return [Repeat(producer_id, request_id)]
        else:
            # The earlier producer is replaced, so requests to close it are answered, too.
            effects = [Detach(producer_id), *map(Confirm, known.close_requests)]
        self._attempts += 1
        self._dropped.pop(producer_id, None)
        self._producers[producer_id] = _Producer(ProducerState.OPENING, self._attempts, epoch, [])
        return [*effects, Attach(producer_id, self._attempts)]

    def opened(self, producer_id: int, attempt: int) -> list[Effect]:
        """Note that the topic has admitted the producer."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.attempt != attempt:
            return []
        if producer.state is ProducerState.UNDOING:  # It was too late to cancel it.
            del self._producers[producer_id]
            return [Detach(producer_id), *map(Confirm, producer.close_requests)]
        assert producer.state is ProducerState.OPENING
        producer.state = ProducerState.OPEN
        return []

    def open_failed(self, producer_id: int, attempt: int) -> list[Effect]:
        """Note that the topic has not admitted the producer, or that the attempt was cancelled."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.attempt != attempt:
            return []
        del self._producers[producer_id]
        return [*map(Confirm, producer.close_requests)]

    def close(self, producer_id: int, request_id: int) -> list[Effect]:
        """Close the producer because the client asks for it."""
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

    def drained(self, producer_id: int) -> list[Effect]:
        """Note that the producer has no outstanding sends."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.state is not ProducerState.CLOSING:
            return []
        del self._producers[producer_id]
        return [Detach(producer_id), *map(Confirm, producer.close_requests)]

    def dropped(self, producer_id: int, now_s: float) -> list[Effect]:
        """Note that the topic has closed the producer."""
        producer = self._producers.pop(producer_id, None)
        # Ids whose time is over are removed here, so that the table stays small.
        self._dropped = {i: until for i, until in self._dropped.items() if until > now_s}
        self._dropped[producer_id] = now_s + self._ignore_s
        return [] if producer is None else [*map(Confirm, producer.close_requests)]
