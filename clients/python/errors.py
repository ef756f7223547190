"""The errors of the client.

The next step of a caller depends on two things, so every error has both:

    outcome   did the request take effect?   NOT_APPLIED, or UNKNOWN if the answer was lost
    remedy    what may help?                 GIVE_UP, RETRY, or LOOK_UP if the topic has moved

    BrokerError
      RefusedError              the broker said no; nothing was changed
        TopicNotFoundError
        SubscriptionNotFoundError
        NotReadyError           the topic moves, or another broker serves it: look it up again
        OverloadedError         too much at once, or a quota is full
        BusyError               another client holds the name, or the subscription
        ProducerFencedError     a newer producer took over
        TopicTerminatedError    the topic takes no messages any more
        NotAllowedError         forbidden: by policy, or without permission
          AuthenticationError   the broker does not accept the credentials, or wants some
          AuthorizationError    the role lacks the right
        MessageRejectedError    the message arrived damaged at the broker
        IncompatibleSchemaError the schema does not fit that of the topic
      InDoubtError              the request may have been carried out
        ConnectionLostError
        RequestTimedOutError
        AdminInDoubtError       a broker failed while it carried out an admin request
        StorageError            the broker could not say whether it is stored
      NotSentError              it never left this client
        QueueFullError          more is waiting than the producer may hold
        MessageTooLargeError
        UnavailableError        no broker could be reached
        WrongProtocolError      no broker listens at the address, but another server
        TlsError                TLS did not succeed: a certificate, or a port without TLS
        ClosedError             the client, producer or consumer was closed by its owner
      AdminError                an admin request was refused; `status` is the HTTP status
        NotFoundError           404
        ConflictError           409: it exists already
        AdminNotReadyError      503: the broker cannot do it now, and has done nothing
        AdminAuthenticationError  401; an AuthenticationError, too
        AdminAuthorizationError   403; an AuthorizationError, too
      EndOfTopicError           the topic was terminated, and its last message was received
      CorruptMessageError       a message arrived that cannot be read; it was not acknowledged

An error has its own class if callers would catch it by name; any other refusal is a `RefusedError`
with the code that the broker sent.
"""

from collections.abc import Iterator
from enum import Enum, auto
from typing import ClassVar

from daybook.clients.python.message_id import MessageId
from daybook.wire.proto import pulsar_pb2 as pb


class Outcome(Enum):
    NOT_APPLIED = auto()
    UNKNOWN = auto()


class Remedy(Enum):
    GIVE_UP = auto()
    RETRY = auto()
    LOOK_UP = auto()


class BrokerError(Exception):
    """The base of all errors between a client and its brokers."""

    outcome: ClassVar[Outcome]
    remedy: ClassVar[Remedy] = Remedy.GIVE_UP


class RefusedError(BrokerError):
    outcome = Outcome.NOT_APPLIED

    def __init__(self, code: int, message: str) -> None:
        super().__init__(_with_code(message, code))
        self.code = code


class TopicNotFoundError(RefusedError):
    pass


class SubscriptionNotFoundError(RefusedError):
    pass


class NotReadyError(RefusedError):
    remedy = Remedy.LOOK_UP


class OverloadedError(RefusedError):
    remedy = Remedy.RETRY


class BusyError(RefusedError):
    pass


class ProducerFencedError(RefusedError):
    pass


class TopicTerminatedError(RefusedError):
    pass


class NotAllowedError(RefusedError):
    pass


class AuthenticationError(NotAllowedError):
    pass


class AuthorizationError(NotAllowedError):
    pass


class MessageRejectedError(RefusedError):
    remedy = Remedy.RETRY


class IncompatibleSchemaError(RefusedError):
    pass


class InDoubtError(BrokerError):
    outcome = Outcome.UNKNOWN
    remedy = Remedy.RETRY


class ConnectionLostError(InDoubtError):
    remedy = Remedy.LOOK_UP


class RequestTimedOutError(InDoubtError):
    remedy = Remedy.LOOK_UP


class StorageError(InDoubtError):
    remedy = Remedy.LOOK_UP

    def __init__(self, code: int, message: str) -> None:
        super().__init__(_with_code(message, code))
        self.code = code


class NotSentError(BrokerError):
    outcome = Outcome.NOT_APPLIED


class QueueFullError(NotSentError):
    remedy = Remedy.RETRY


class MessageTooLargeError(NotSentError):
    pass


class UnavailableError(NotSentError):
    remedy = Remedy.LOOK_UP


class WrongProtocolError(NotSentError):
    pass


class TlsError(NotSentError):
    # A producer that waits for its broker goes on when the certificate is renewed.
    remedy = Remedy.LOOK_UP


class CredentialsError(NotSentError):
    pass


class ClosedError(NotSentError):
    pass


class AdminError(BrokerError):
    outcome = Outcome.NOT_APPLIED

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(_with_status(reason, status))
        self.status = status


class NotFoundError(AdminError):
    pass


class ConflictError(AdminError):
    pass


class AdminNotReadyError(AdminError):
    remedy = Remedy.RETRY


class AdminAuthenticationError(AdminError, AuthenticationError):
    def __init__(self, status: int, reason: str) -> None:
        BrokerError.__init__(self, _with_status(reason, status))
        self.status, self.code = status, pb.AuthenticationError


class AdminAuthorizationError(AdminError, AuthorizationError):
    def __init__(self, status: int, reason: str) -> None:
        BrokerError.__init__(self, _with_status(reason, status))
        self.status, self.code = status, pb.AuthorizationError


class AdminInDoubtError(InDoubtError):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(_with_status(reason, status))
        self.status = status


class EndOfTopicError(BrokerError):
    outcome = Outcome.NOT_APPLIED


class CorruptMessageError(BrokerError):
    outcome = Outcome.NOT_APPLIED

    def __init__(self, message: str, message_id: MessageId) -> None:
        super().__init__(f"{message_id}: {message}")
        self.message_id = message_id


_BY_CODE: dict[int, type[RefusedError] | type[StorageError]] = {
    pb.UnknownError: StorageError,
    pb.MetadataError: NotReadyError,
    pb.PersistenceError: StorageError,
    pb.AuthenticationError: AuthenticationError,
    pb.AuthorizationError: AuthorizationError,
    pb.ConsumerBusy: BusyError,
    pb.ServiceNotReady: NotReadyError,
    pb.ProducerBlockedQuotaExceededError: OverloadedError,
    pb.ProducerBlockedQuotaExceededException: OverloadedError,
    pb.ChecksumError: MessageRejectedError,
    pb.TopicNotFound: TopicNotFoundError,
    pb.SubscriptionNotFound: SubscriptionNotFoundError,
    pb.ConsumerNotFound: NotReadyError,
    pb.TooManyRequests: OverloadedError,
    pb.TopicTerminatedError: TopicTerminatedError,
    pb.ProducerBusy: BusyError,
    pb.NotAllowedError: NotAllowedError,
    pb.ProducerFenced: ProducerFencedError,
    pb.IncompatibleSchema: IncompatibleSchemaError,
}


def code_name(code: int) -> str:
    """Return the name of an error code, or its number if this client does not know it."""
    value = pb.ServerError.DESCRIPTOR.values_by_number.get(code)
    return value.name if value is not None else f"code {code}"


def _with_code(message: str, code: int) -> str:
    """Return the message of a broker with the name of its code, which some brokers add, too."""
    name = f"({code_name(code)})"
    return message if message.endswith(name) else f"{message} {name}"


def _with_status(reason: str, status: int) -> str:
    return f"{reason} (HTTP {status})"


def refusal(code: int, message: str) -> RefusedError | StorageError:
    """Return the error for a code from the wire; an unknown code is a plain refusal."""
    error = _BY_CODE.get(code, RefusedError)(code, message or "the broker refused")
    if isinstance(error, TopicNotFoundError) and "the namespace" in message:
        error.add_note(
            "The namespace public/default always exists; `create_namespace` of daybook.admin.Admin"
            " makes others."
        )
    return error


def is_refused_for_now(error: BrokerError) -> bool:
    """Return True if the broker of the topic has refused; False if that broker is to be found."""
    return isinstance(error, RefusedError) and not isinstance(error, NotReadyError)


def is_quota_exception(error: BrokerError) -> bool:
    """Return True if a quota is exceeded whose policy wants producers to fail, and not to wait."""
    return (
        isinstance(error, RefusedError) and error.code == pb.ProducerBlockedQuotaExceededException
    )


def admin_error(
    status: int, reason: str, *, applied: bool | None = None
) -> AdminError | AdminInDoubtError:
    """Return the error for an HTTP status.

    With 500 and above, a part may have been done, unless `applied` is False.
    """
    match status:
        case 503 if applied is False:
            return AdminNotReadyError(status, reason)
        case 401:
            return AdminAuthenticationError(status, reason)
        case 403:
            return AdminAuthorizationError(status, reason)
        case 404:
            return NotFoundError(status, reason)
        case 409:
            return ConflictError(status, reason)
        case _:
            kind = AdminInDoubtError if status >= 500 else AdminError
            return kind(status, reason)


def _public_errors() -> Iterator[type[BrokerError]]:
    kinds = [BrokerError]
    while kinds:
        kind = kinds.pop()
        yield kind
        kinds += kind.__subclasses__()


def may_retry(error: BrokerError, *, idempotent: bool) -> bool:
    """Return True if a retry may help and cannot carry out a request twice."""
    return error.remedy is not Remedy.GIVE_UP and (
        idempotent or error.outcome is Outcome.NOT_APPLIED
    )


def _show_public_names() -> None:
    """Let tracebacks show the name by which applications import an error."""
    for kind in _public_errors():
        kind.__module__ = "daybook"


_show_public_names()
