"""How a command is refused, and how late the refusal is sent if the client repeats the command.

Each kind of request has its own way to carry an error: `refusal` makes the answer.  Commands that
have neither a request id nor a field for an error (SEND, FLOW, ...) are not refused here.

A client that repeats a refused command as soon as it is refused would keep a broker busy forever.
The first refusal is sent at once.  Each one that follows soon is delayed twice as long as the one
before it, up to a bound.  A command that was not refused for a while starts again without a delay.

A client that asks for one thing after the other that it may not have, or that does not exist, is
refused at once only `PACE_BURST` times, and then `PACE_PER_S` times a second.  `refusal_paces` does
the same for all connections of a role or an address together.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from google.protobuf.message import Message

from daybook.wire.messages.registry import NO_ID
from daybook.wire.proto import pulsar_pb2 as pb

T = pb.BaseCommand

DELAY_MIN_S = 0.01
DELAY_MAX_S = 1.0
FORGOTTEN_AFTER_S = 3.0
PACE_PER_S = 25
PACE_BURST = 250
_COMMANDS_MAX = 1_000  # per connection; the ones refused longest ago are forgotten first
_NAME_CHARS_MAX = 256  # A longer name is remembered by its digest.
_DIGEST_BYTES = 16

_SUBJECT = ("topic", "namespace", "subscription", "producer_name", "tc_id", "schema_version")
_IDS = ("consumer_id", "session_id", "watch_id")  # identify commands that name nothing else


def refusal(command: int, body: Any, code: int, reason: str) -> Message:  # noqa: ANN401
    """Return the answer to a request that is refused with this error."""
    answer: Message = _answer(command, body, reason)
    match answer:
        case (
            pb.CommandGetSchemaResponse()
            | pb.CommandGetOrCreateSchemaResponse()
            | pb.CommandConsumerStatsResponse()
        ):
            answer.error_code = code  # type: ignore[assignment]
        case _:
            answer.error = code  # type: ignore[attr-defined]
    return answer


def _answer(command: int, body: Any, reason: str) -> Any:  # noqa: ANN401
    match command:
        case T.PARTITIONED_METADATA:
            return pb.CommandPartitionedTopicMetadataResponse(
                request_id=body.request_id,
                response=pb.CommandPartitionedTopicMetadataResponse.Failed,
                message=reason,
            )
        case T.LOOKUP:
            return pb.CommandLookupTopicResponse(
                request_id=body.request_id,
                response=pb.CommandLookupTopicResponse.Failed,
                message=reason,
            )
        case T.ACK:
            return pb.CommandAckResponse(
                request_id=body.request_id, consumer_id=body.consumer_id, message=reason
            )
        case T.CONSUMER_STATS:
            return pb.CommandConsumerStatsResponse(request_id=body.request_id, error_message=reason)
        case T.GET_SCHEMA:
            return pb.CommandGetSchemaResponse(request_id=body.request_id, error_message=reason)
        case T.GET_OR_CREATE_SCHEMA:
            return pb.CommandGetOrCreateSchemaResponse(
                request_id=body.request_id, error_message=reason
            )
        case T.SCALABLE_TOPIC_LOOKUP | T.SCALABLE_TOPIC_CLOSE:
            return pb.CommandScalableTopicUpdate(session_id=body.session_id, message=reason)
        case T.WATCH_SCALABLE_TOPICS | T.WATCH_SCALABLE_TOPICS_CLOSE:
            return pb.CommandWatchScalableTopicsUpdate(watch_id=body.watch_id, message=reason)
        case T.WATCH_TC_ASSIGNMENTS | T.WATCH_TC_ASSIGNMENTS_CLOSE:
            return pb.CommandWatchTcAssignmentsUpdate(watch_id=body.watch_id, message=reason)
        case _:
            kind = _RESPONSES.get(command)
            if kind is not None:
                return kind(request_id=body.request_id, message=reason)
            request_id = getattr(body, "request_id", NO_ID)
            return pb.CommandError(request_id=request_id, message=reason)


_RESPONSES: dict[int, Any] = {
    T.NEW_TXN: pb.CommandNewTxnResponse,
    T.ADD_PARTITION_TO_TXN: pb.CommandAddPartitionToTxnResponse,
    T.ADD_SUBSCRIPTION_TO_TXN: pb.CommandAddSubscriptionToTxnResponse,
    T.END_TXN: pb.CommandEndTxnResponse,
    T.END_TXN_ON_PARTITION: pb.CommandEndTxnOnPartitionResponse,
    T.END_TXN_ON_SUBSCRIPTION: pb.CommandEndTxnOnSubscriptionResponse,
    T.SCALABLE_TOPIC_SUBSCRIBE: pb.CommandScalableTopicSubscribeResponse,
}


@dataclass(slots=True)
class _Refused:
    delay_s: float
    answered_s: float


class Repeats:
    """The commands that were refused lately.  One instance per connection."""

    def __init__(self) -> None:
        self._refused: dict[Hashable, _Refused] = {}  # the last one refused is at the end

    def __len__(self) -> int:
        return len(self._refused)

    def delay_s(self, command: Hashable, now_s: float) -> float:
        """Return how much later to send the refusal of a command that is refused now."""
        before = self._refused.pop(command, None)
        delay_s = 0.0
        if before is not None and now_s < before.answered_s + FORGOTTEN_AFTER_S:
            delay_s = min(DELAY_MAX_S, max(DELAY_MIN_S, 2 * before.delay_s))
        elif len(self._refused) >= _COMMANDS_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[command] = _Refused(delay_s, now_s + delay_s)
        return delay_s


class RefusalPace:
    """The times at which the requests of one connection, or of one culprit, may be refused."""

    def __init__(
        self,
        burst: int = PACE_BURST,
        per_s: float = PACE_PER_S,
        delay_max_s: float = math.inf,
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._lately_max = burst + per_s * delay_max_s
        self._lately = 0.0  # the number of refusals, which falls by `per_s`
        self._at_s = 0.0

    def delay_s(self, now_s: float) -> float:
        """Return how long a request that is refused now has to wait for its refusal."""
        left = max(0.0, self._lately - (now_s - self._at_s) * self._per_s)
        self._lately = min(left + 1, self._lately_max)
        self._at_s = now_s
        return max(0.0, (self._lately - self._burst) / self._per_s)


def repeated_as(command: int, body: Any) -> Hashable:  # noqa: ANN401  generated messages
    """Return a key that is equal for two commands that ask for the same thing.

    Ids of requests are not part of it.
    """
    named = tuple(_short(str(getattr(body, name, ""))) for name in _SUBJECT)
    if any(named):
        return (command, *named)
    return (command, *(getattr(body, name, 0) for name in _IDS))


def _short(name: str) -> str:
    """Return the name, or what stands for it: a client may send a name of megabytes."""
    if len(name) <= _NAME_CHARS_MAX:
        return name
    return blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()
