"""Why a broker refuses.

Each refusal has the code of Pulsar's binary protocol (`ServerError`), which decides whether clients
try again, and the status of the admin REST.

    BrokerError                code                    status
      NotFoundError            TopicNotFound           404   no such tenant, namespace, topic
        SubscriptionNotFoundError                      404
      ConflictError            NotAllowedError         409   it exists, or something is in its way
      PreconditionError        NotAllowedError         412   a value or a name makes no sense
        InvalidNameError       InvalidTopicName        412
      NotAllowedError          NotAllowedError         405   never, for this kind of thing
      UnavailableError         ServiceNotReady         503   not now: look up again
        NotOwnerError          ServiceNotReady         307   another broker serves it
      BusyError                ConsumerBusy, ...       409   somebody else has it
      TopicTerminatedError     TopicTerminatedError    409   nothing can be appended any more
      CannotJoinError          MetadataError           500   not with these settings
      StorageFailedError       PersistenceError        500   what is stored makes no sense
      RefusedError             any                           a code that a protocol machine chose
"""

from daybook.wire.proto import pulsar_pb2 as pb


class BrokerError(Exception):
    """The broker said no; nothing was changed."""

    code: int = pb.UnknownError
    status: int = 500

    @property
    def reason(self) -> str:
        return str(self)


class NotFoundError(BrokerError):
    """There is no such tenant, namespace or topic."""

    code = pb.TopicNotFound
    status = 404


class SubscriptionNotFoundError(NotFoundError):
    code = pb.SubscriptionNotFound


class ConflictError(BrokerError):
    """It exists already, or something that exists is in the way."""

    code = pb.NotAllowedError
    status = 409


class PreconditionError(BrokerError):
    """A value makes no sense, or something is in use."""

    code = pb.NotAllowedError
    status = 412


class InvalidNameError(PreconditionError):
    code = pb.InvalidTopicName


class NotAllowedError(BrokerError):
    """Never possible for this kind of thing."""

    code = pb.NotAllowedError
    status = 405


class UnavailableError(BrokerError):
    """Not now.  Clients look up again."""

    code = pb.ServiceNotReady
    status = 503


class NotOwnerError(UnavailableError):
    """Another broker serves the topic, or none does yet."""

    status = 307

    def __init__(
        self, message: str, *, http_url: str | None = None, authoritative: bool = False
    ) -> None:
        super().__init__(message)
        self.http_url = http_url  # of the owner, or of a broker that knows more
        self.authoritative = authoritative


class BusyError(BrokerError):
    """Somebody else has it, and is alive."""

    status = 409


class ConsumerBusyError(BusyError):
    code = pb.ConsumerBusy


class ProducerBusyError(BusyError):
    code = pb.ProducerBusy


class TopicTerminatedError(BrokerError):
    """Nothing can be appended any more."""

    code = pb.TopicTerminatedError
    status = 409


class StorageFailedError(BrokerError):
    """What is stored of a topic makes no sense: somebody has to look."""

    code = pb.PersistenceError
    status = 500


class CannotJoinError(BrokerError):
    """This broker may not serve the topics of this metadata store: its settings are wrong."""

    code = pb.MetadataError


class RefusedError(BrokerError):
    """With a code that a protocol machine chose."""

    status = 412

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
