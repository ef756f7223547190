"""The errors with which a broker refuses a request.

Each error has a code of Pulsar's binary protocol (`ServerError`), which decides whether clients try
again, and a status of the admin REST.

    BrokerError                code                    status
      NotFoundError            TopicNotFound           404   no such tenant, namespace, topic
        SubscriptionNotFoundError                      404
      ConflictError            NotAllowedError         409   it exists, or another one is in the way
      PreconditionError        NotAllowedError         412   a value or a name is not valid
        InvalidNameError       InvalidTopicName        412
      NotAllowedError          NotAllowedError         405   never possible for this kind of object
      UnavailableError         ServiceNotReady         503   not possible now: look up again
        NotOwnerError          ServiceNotReady         307   another broker serves the topic
        NotBegunError                                  503   not possible now, and nothing was done
        NoRoomError                                    503   its memory is used up: try again later
      BusyError                ConsumerBusy, ...       409   another client holds it
      TooManyRequestsError     TooManyRequests         429   a rate is exceeded: try again later
      ConsumerAssignError      ConsumerAssignError     409   its key_shared policy does not fit
      TopicTerminatedError     TopicTerminatedError    409   the topic accepts no more messages
      InvalidSchemaError       IncompatibleSchema      422   the schema itself is not valid
      IncompatibleSchemaError  IncompatibleSchema      409   it does not fit those of the topic
      CannotJoinError          MetadataError           500   the settings of this broker are wrong
      StorageFailedError       PersistenceError        500   stored data cannot be parsed
      AuthenticationError      AuthenticationError     401   the broker does not know who asks
      AuthorizationError       AuthorizationError      403   the role lacks the right
      RefusedError             any                           a protocol machine chose the code
"""

from collections.abc import Generator
from contextlib import contextmanager

from daybook.wire.proto import pulsar_pb2 as pb


class BrokerError(Exception):
    """The broker refused the request and changed nothing."""

    code: int = pb.UnknownError
    status: int = 500

    @property
    def reason(self) -> str:
        return str(self)


class NotFoundError(BrokerError):
    """There is no such tenant, namespace or topic."""

    code = pb.TopicNotFound
    status = 404


def no_sink(name: str) -> NotFoundError:
    """Return the error about a sink that does not exist, or that is hidden from who asks."""
    return NotFoundError(f"there is no sink {name}")


class SubscriptionNotFoundError(NotFoundError):
    code = pb.SubscriptionNotFound


class ConflictError(BrokerError):
    """The object exists already, or another object is in the way."""

    code = pb.NotAllowedError
    status = 409


class PreconditionError(BrokerError):
    """A value is not valid, or an object is in use."""

    code = pb.NotAllowedError
    status = 412


class InvalidNameError(PreconditionError):
    code = pb.InvalidTopicName


class NotAllowedError(BrokerError):
    """The operation is never possible for this kind of object."""

    code = pb.NotAllowedError
    status = 405


class UnavailableError(BrokerError):
    """The operation is not possible now.  Clients look up the topic again."""

    code = pb.ServiceNotReady
    status = 503


class NotOwnerError(UnavailableError):
    """Another broker serves the topic, or no broker serves it yet."""

    status = 307

    def __init__(
        self,
        message: str,
        *,
        http_url: str | None = None,
        http_url_tls: str | None = None,
        authoritative: bool = False,
    ) -> None:
        super().__init__(message)
        # The URLs of the owner, or of a broker that knows the owner.
        self.http_url = http_url
        self.http_url_tls = http_url_tls
        self.authoritative = authoritative


class NotBegunError(UnavailableError):
    """The operation is not possible now, and the broker has done nothing of it.

    Any other UnavailableError may come in the middle, so HTTP clients are told of this one.
    """


@contextmanager
def before_any_change() -> Generator[None]:
    """Turn an UnavailableError of the block into a NotBegunError: the block changes nothing."""
    try:
        yield
    except UnavailableError as error:
        if type(error) is not UnavailableError:
            raise  # It says more, such as the owner.
        raise NotBegunError(str(error)) from error


class NoRoomError(UnavailableError):
    """The broker has no memory for the answer now.  HTTP clients are told when to try again."""

    retry_after_s = 5


class BusyError(BrokerError):
    """Another client holds the object, and is alive."""

    status = 409


class ConsumerBusyError(BusyError):
    code = pb.ConsumerBusy


class TooManyRequestsError(BrokerError):
    """The client asks too often.  Clients whose connection was lost try again."""

    code = pb.TooManyRequests
    status = 429


class ConsumerAssignError(BrokerError):
    """The key_shared policy or the hash ranges of a consumer do not fit those of the others."""

    code = pb.ConsumerAssignError
    status = 409


class ProducerBusyError(BusyError):
    code = pb.ProducerBusy


class TopicTerminatedError(BrokerError):
    """The topic accepts no more messages."""

    code = pb.TopicTerminatedError
    status = 409


class StorageFailedError(BrokerError):
    """Stored data of a topic cannot be parsed: an operator has to look at it."""

    code = pb.PersistenceError
    status = 500


class InvalidSchemaError(BrokerError):
    """The schema cannot be stored.  The code is the only one at which no client asks again."""

    code = pb.IncompatibleSchema
    status = 422


class IncompatibleSchemaError(BrokerError):
    """The schema does not fit the schemas that the topic has."""

    code = pb.IncompatibleSchema
    status = 409


class AuthenticationError(BrokerError):
    """The credentials are missing or wrong.  The message never quotes them."""

    code = pb.AuthenticationError
    status = 401


class ExpiredError(AuthenticationError):
    """The credentials were right, and have expired."""


class AuthorizationError(BrokerError):
    """The role lacks the right, which the message names."""

    code = pb.AuthorizationError
    status = 403


class CannotJoinError(BrokerError):
    """This broker must not serve the topics of this metadata store: its settings are wrong."""

    code = pb.MetadataError


class RefusedError(BrokerError):
    """A refusal with a code that a protocol machine chose."""

    status = 412

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
