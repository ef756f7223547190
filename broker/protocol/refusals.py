"""How a command is refused: each kind of request has its own way to carry an error.

`refusal` is the answer to a request with this error.  Commands that have neither a request id nor a
way to carry one (SEND, FLOW, ...) are not for here.
"""

from typing import Any

from google.protobuf.message import Message

from daybook.wire.messages.registry import NO_ID
from daybook.wire.proto import pulsar_pb2 as pb

T = pb.BaseCommand


def refusal(command: int, body: Any, code: int, reason: str) -> Message:  # noqa: ANN401
    """The answer to a request that is refused."""
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
