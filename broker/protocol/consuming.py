"""The consumers of one connection, by the ids that the client gave them.

    (nothing) --open--> OPENING --opened--> OPEN --close, dropped--> (nothing)
                           |  | open_failed
                     close |  +--> (nothing)
                           +--> UNDOING --open_failed or opened--> (nothing)

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


# -- effects


@dataclass(frozen=True, slots=True)
class Attach:
    """Join the subscription, and then call `opened` or `open_failed`."""

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

    # -- inputs

    def open(self, consumer_id: int, request_id: int) -> list[Effect]:
        """Open the consumer for which the client asks, or refuse it."""
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

    def opened(self, consumer_id: int, attempt: int) -> list[Effect]:
        """Note that the consumer has joined its subscription."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None or consumer.attempt != attempt:
            return []
        if consumer.state is ConsumerState.UNDOING:  # It was too late to cancel it.
            del self._consumers[consumer_id]
            return [Detach(consumer_id), *map(Confirm, consumer.close_requests)]
        assert consumer.state is ConsumerState.OPENING
        consumer.state = ConsumerState.OPEN
        return []

    def open_failed(self, consumer_id: int, attempt: int) -> list[Effect]:
        """Note that the consumer has not joined, or that the attempt was cancelled."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None or consumer.attempt != attempt:
            return []
        del self._consumers[consumer_id]
        return [*map(Confirm, consumer.close_requests)]

    def close(self, consumer_id: int, request_id: int) -> list[Effect]:
        """Close the consumer because the client asks for it."""
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

    def dropped(self, consumer_id: int) -> list[Effect]:
        """Note that the subscription has closed the consumer."""
        self._consumers.pop(consumer_id, None)
        return []
