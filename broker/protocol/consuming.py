"""The consumers of one connection, by the ids that the client gave them.

    (nothing) --Open--> OPENING --Opened--> OPEN --Close, Dropped--> (nothing)
                           |  | OpenFailed
                     Close |  +--> (nothing)
                           +--> UNDOING --OpenFailed--> (nothing)

A close that comes while the consumer is being opened undoes the opening.  The close is answered
when the opening has certainly ended, so a later request of the client finds no trace of it.

Permits, acknowledgements and requests for redelivery are ignored if their consumer is not open: the
client did not know yet that the broker has dropped it, and gets all entries again.

The number of an *attempt* is never used twice.  The result of an attempt is void unless the attempt
is the latest one of its id.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, assert_never

from daybook.wire.proto import pulsar_pb2 as pb

CLOSE_REQUESTS_MAX = 16  # per consumer, that wait to be answered


class ConsumerState(Enum):
    OPENING = auto()
    OPEN = auto()
    UNDOING = auto()  # closed before it was open


# -- events


@dataclass(frozen=True, slots=True)
class Open:
    consumer_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Opened:
    consumer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class OpenFailed:
    consumer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CloseAsked:
    consumer_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The subscription has closed the consumer."""

    consumer_id: int


Event: TypeAlias = Open | Opened | OpenFailed | CloseAsked | Dropped


# -- effects


@dataclass(frozen=True, slots=True)
class Attach:
    """Join the subscription, and then report `Opened` or `OpenFailed`."""

    consumer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Cancel an attempt, which then fails.  Its request is answered with an error."""

    consumer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Detach:
    """Take the consumer off its subscription.  Its entries go to other consumers."""

    consumer_id: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Answer a request with SUCCESS."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Refuse:
    request_id: int
    code: int
    reason: str


Effect: TypeAlias = Attach | Abort | Detach | Confirm | Refuse


@dataclass(slots=True)
class _Consumer:
    state: ConsumerState
    attempt: int
    close_requests: list[int]


class ConsumingProtocol:
    """One instance per connection."""

    def __init__(self, *, consumers_max: int) -> None:
        self._consumers: dict[int, _Consumer] = {}
        self._attempts = 0
        self._consumers_max = consumers_max

    def __len__(self) -> int:
        return len(self._consumers)

    def state_of(self, consumer_id: int) -> ConsumerState | None:
        consumer = self._consumers.get(consumer_id)
        return None if consumer is None else consumer.state

    def step(self, event: Event) -> list[Effect]:
        match event:
            case Open(consumer_id, request_id):
                return self._open(consumer_id, request_id)
            case Opened(consumer_id, attempt):
                consumer = self._consumers.get(consumer_id)
                if consumer is not None and consumer.attempt == attempt:
                    return self._opened(consumer_id, consumer)
            case OpenFailed(consumer_id, attempt):
                consumer = self._consumers.get(consumer_id)
                if consumer is not None and consumer.attempt == attempt:
                    del self._consumers[consumer_id]
                    return [*map(Confirm, consumer.close_requests)]
            case CloseAsked(consumer_id, request_id):
                return self._close(consumer_id, request_id)
            case Dropped(consumer_id):
                self._consumers.pop(consumer_id, None)
            case _:
                assert_never(event)
        return []

    def _open(self, consumer_id: int, request_id: int) -> list[Effect]:
        match self.state_of(consumer_id):
            case ConsumerState.OPENING:
                reason = f"consumer {consumer_id} is being created"
                return [Refuse(request_id, pb.ServiceNotReady, reason)]
            case ConsumerState.UNDOING:
                reason = f"consumer {consumer_id} is being closed"
                return [Refuse(request_id, pb.ServiceNotReady, reason)]
            case ConsumerState.OPEN:
                return [Confirm(request_id)]
            case None:
                if len(self._consumers) >= self._consumers_max:
                    reason = f"a connection has at most {self._consumers_max} consumers"
                    return [Refuse(request_id, pb.NotAllowedError, reason)]
        self._attempts += 1
        self._consumers[consumer_id] = _Consumer(ConsumerState.OPENING, self._attempts, [])
        return [Attach(consumer_id, self._attempts)]

    def _opened(self, consumer_id: int, consumer: _Consumer) -> list[Effect]:
        if consumer.state is ConsumerState.UNDOING:  # It was too late to cancel it.
            del self._consumers[consumer_id]
            return [Detach(consumer_id), *map(Confirm, consumer.close_requests)]
        assert consumer.state is ConsumerState.OPENING
        consumer.state = ConsumerState.OPEN
        return []

    def _close(self, consumer_id: int, request_id: int) -> list[Effect]:
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            return [Confirm(request_id)]
        match consumer.state:
            case ConsumerState.OPENING:
                consumer.state = ConsumerState.UNDOING
                consumer.close_requests.append(request_id)
                return [Abort(consumer_id, consumer.attempt)]
            case ConsumerState.UNDOING:
                if len(consumer.close_requests) >= CLOSE_REQUESTS_MAX:
                    reason = f"consumer {consumer_id} is being closed"
                    return [Refuse(request_id, pb.ServiceNotReady, reason)]
                consumer.close_requests.append(request_id)
                return []
            case ConsumerState.OPEN:
                del self._consumers[consumer_id]
                return [Detach(consumer_id), Confirm(request_id)]
            case _:
                assert_never(consumer.state)
