"""The consumers of one connection, by the ids that the client gave them.

    (nothing) --Open--> OPENING --Opened--> OPEN --Close, Dropped--> (nothing)
                           |  | OpenFailed
                     Close |  +--> (nothing)
                           +--> UNDOING --OpenFailed--> (nothing)

A close that comes while the consumer is being opened undoes that: it is answered when nothing can
come of the opening any more, so that what the client asks for behind the answer meets no trace.

Permits, acknowledgements and requests for redelivery that come for a consumer that is not open are
of no interest: the client did not know yet that it is gone, and gets everything again.

An *attempt* is never used twice.  What comes of any but the latest attempt of an id is void.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, assert_never

from daybook.wire.proto import pulsar_pb2 as pb

CLOSE_REQUESTS_MAX = 16  # that wait to be answered, of one consumer


class State(Enum):
    OPENING = auto()
    OPEN = auto()
    UNDOING = auto()  # closed before it was open


# -- what happens


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
    """The subscription has let go of it."""

    consumer_id: int


Event: TypeAlias = Open | Opened | OpenFailed | CloseAsked | Dropped


# -- what is to be done


@dataclass(frozen=True, slots=True)
class Attach:
    """Let the subscription take it; then tell."""

    consumer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Give up an attempt, which then fails; its request is answered with an error."""

    consumer_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Detach:
    """Take it off its subscription; what it has goes to others."""

    consumer_id: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """SUCCESS to a request."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Refuse:
    request_id: int
    code: int
    reason: str


Effect: TypeAlias = Attach | Abort | Detach | Confirm | Refuse


@dataclass(slots=True)
class _Consumer:
    state: State
    attempt: int
    close_requests: list[int]


class ConsumingProtocol:
    """See the module."""

    def __init__(self, *, consumers_max: int) -> None:
        self._consumers: dict[int, _Consumer] = {}
        self._attempts = 0
        self._consumers_max = consumers_max

    def __len__(self) -> int:
        return len(self._consumers)

    def state_of(self, consumer_id: int) -> State | None:
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
            case State.OPENING:
                reason = f"consumer {consumer_id} is being created"
                return [Refuse(request_id, pb.ServiceNotReady, reason)]
            case State.UNDOING:
                reason = f"consumer {consumer_id} is being closed"
                return [Refuse(request_id, pb.ServiceNotReady, reason)]
            case State.OPEN:
                return [Confirm(request_id)]
            case None:
                if len(self._consumers) >= self._consumers_max:
                    reason = f"a connection has at most {self._consumers_max} consumers"
                    return [Refuse(request_id, pb.NotAllowedError, reason)]
        self._attempts += 1
        self._consumers[consumer_id] = _Consumer(State.OPENING, self._attempts, [])
        return [Attach(consumer_id, self._attempts)]

    def _opened(self, consumer_id: int, consumer: _Consumer) -> list[Effect]:
        if consumer.state is State.UNDOING:  # It was too late to give it up.
            del self._consumers[consumer_id]
            return [Detach(consumer_id), *map(Confirm, consumer.close_requests)]
        consumer.state = State.OPEN
        return []

    def _close(self, consumer_id: int, request_id: int) -> list[Effect]:
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            return [Confirm(request_id)]
        match consumer.state:
            case State.OPENING:
                consumer.state = State.UNDOING
                consumer.close_requests.append(request_id)
                return [Abort(consumer_id, consumer.attempt)]
            case State.UNDOING:
                if len(consumer.close_requests) >= CLOSE_REQUESTS_MAX:
                    reason = f"consumer {consumer_id} is being closed"
                    return [Refuse(request_id, pb.ServiceNotReady, reason)]
                consumer.close_requests.append(request_id)
                return []
            case State.OPEN:
                del self._consumers[consumer_id]
                return [Detach(consumer_id), Confirm(request_id)]
            case _:
                assert_never(consumer.state)
