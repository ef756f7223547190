"""What the commands that talk to brokers share."""

import trio

from clients.cli.errors import UserError
from clients.python.errors import (
    BrokerError,
    BusyError,
    InDoubtError,
    NotFoundError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from clients.python.limits import ClientLimits
from clients.python.pool import parse_service_url
from wire.errors import ConnectionLostError, MalformedError
from wire.tcp import TcpNetwork
from wire.topics import TopicName, check_namespace

# Somebody waits for the answer.  Longer than the topics of a broker that died need to move.
LIMITS = ClientLimits(operation_timeout_s=15.0)


def parse_topic(name: str) -> TopicName:
    try:
        return TopicName.parse(name)
    except MalformedError as error:
        raise UserError(
            f"{error}: a topic is NAME or persistent://TENANT/NAMESPACE/NAME."
        ) from None


def parse_namespace(name: str) -> str:
    try:
        return check_namespace(name)
    except MalformedError as error:
        raise UserError(f"{error}: a namespace is TENANT/NAME, as public/default.") from None


async def check_reachable(service_url: str) -> None:
    """UnavailableError if no broker takes a connection: the client would try for a while."""
    failures: list[str] = []
    for host, port in parse_service_url(service_url):
        with trio.move_on_after(LIMITS.connect_timeout_s) as scope:
            try:
                stream = await TcpNetwork().connect(host, port)
            except ConnectionLostError as error:
                failures.append(str(error))
                continue
            stream.close()
            return
        if scope.cancelled_caught:
            failures.append(f"{host}:{port} did not answer")
    raise UnavailableError("; ".join(failures))


def say(error: Exception, url: str, option: str) -> str | None:
    """The sentence for an error of the client or of the admin client; None: it is a fault of ours.

    `url` is where brokers were looked for, `option` where the user says so.
    """
    match error:
        case UnavailableError():
            return (
                f"No broker answers at {url}: start a cluster with `daybook standalone`, or say "
                f"where yours is with {option}."
            )
        case NotFoundError() if "the namespace" in str(error):
            return f"{error}: `daybook topics list --namespace` takes TENANT/NAME."
        case TopicNotFoundError() | NotFoundError() | SubscriptionNotFoundError():
            return f"{error}: `daybook topics list` shows what there is."
        case BusyError():
            return f"{error}: end the other one, or use another subscription or --type shared."
        case InDoubtError():
            return f"{error}: it may have been carried out, look before you try again."
        case BrokerError() | ValueError():
            return f"{error}."
        case _:
            return None
