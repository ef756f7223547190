"""Shared by the commands that talk to brokers: time limits, names, sentences for errors.

While no broker answers, a command says so on standard error, and how long it will keep trying.
"""

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from daybook.clients.cli.chosen import context_note
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.not_found import hint
from daybook.clients.cli.progress import waiting_for
from daybook.clients.python.client import Client
from daybook.clients.python.errors import (
    AdminError,
    AdminNotReadyError,
    BrokerError,
    BusyError,
    CredentialsError,
    InDoubtError,
    NotFoundError,
    NotReadyError,
    RefusedError,
    RequestTimedOutError,
    SubscriptionNotFoundError,
    TlsError,
    TopicNotFoundError,
    UnavailableError,
)
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.pool import parse_service_url
from daybook.wire.errors import ConnectionLostError, MalformedError
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tcp import TcpNetwork
from daybook.wire.topics import TopicName, check_namespace

T = TypeVar("T")

# A user waits for the answer.  Topics of a broker that died move to another one in less time.
PATIENCE_S = 30.0
LIMITS = ClientLimits(operation_timeout_s=PATIENCE_S)
_OPTIONS = {
    "token=": "--token-file",
    "basic=": "--basic-password-file",
    "trusted=": "--tls-trusted",
    "certificate=": "--tls-certificate",
    "key=": "--tls-key",
}
_ARGUMENTS = re.compile(r"(?<=[( ])(?:token|basic|trusted|certificate|key)=(?=[,)])")
_NEXT = (
    "Try again when the cluster runs; `daybook local status` shows the ZooKeeper, bookies and"
    " brokers of a standalone cluster."
)


def parse_topic(name: str) -> TopicName:
    try:
        return TopicName.parse(name)
    except MalformedError as error:
        raise UserError(f"{error}.") from None


def parse_namespace(name: str) -> str:
    try:
        return check_namespace(name)
    except MalformedError as error:
        raise UserError(f"{error}, such as public/default.") from None


def brokers_at(url: str) -> str:
    hosts = url.partition("://")[2].rstrip("/").split(",")
    return f"the broker{'s' * (len(hosts) > 1)} at {', '.join(hosts)}"


async def attach(client: Client, begin: Callable[[], Awaitable[T]]) -> T:
    """Return what `begin` opens; report the waiting, and give up after `PATIENCE_S`."""
    brokers = brokers_at(client.service_url)
    async with waiting_for(brokers, PATIENCE_S, lambda: client.trouble):
        with trio.move_on_after(PATIENCE_S):
            await check_reachable(client.service_url)
            await client.first_contact(PATIENCE_S)  # TLS or credentials that are refused stay so
            return await begin()
    raise client.trouble or no_answer(client.service_url)


def no_answer(url: str) -> RequestTimedOutError:
    return RequestTimedOutError(f"{brokers_at(url)} did not answer in {PATIENCE_S:g} s")


async def check_reachable(service_url: str) -> None:
    """Raise UnavailableError at once if no broker accepts a connection; a client would retry."""
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


def error_sentence(error: Exception, url: str, option: str, *, changes: bool = False) -> str | None:
    """Return the sentence for an error of the client or the admin client; None for a bug of ours.

    `url` is where the command looked for brokers, and `option` is how the user sets it.  `changes`
    is true if the request changes something.  A context that has the address is named.
    """
    sentence = _sentence(error, url, option, changes=changes)
    return None if sentence is None else f"{sentence}{context_note(url)}"


def in_options(error: Exception) -> str:
    """Return an error of the Python client with options in the place of arguments."""
    words = _ARGUMENTS.sub(lambda found: _OPTIONS.get(found[0], found[0]), str(error))
    return words.replace("as `trusted`", "with --tls-trusted").replace(
        "(verify_host)", "(--tls-no-verify-host)"
    )


def _sentence(error: Exception, url: str, option: str, *, changes: bool) -> str | None:
    match error:
        case UnavailableError():
            return (
                f"No broker answers at {url} ({error}): start a cluster with `daybook standalone`"
                " (`daybook local status` shows the parts of one that runs), or say where yours is"
                f" with {option}."
            )
        case TopicNotFoundError() | NotFoundError() | SubscriptionNotFoundError():
            return f"{error}.{hint(str(error))}"
        case BusyError():
            return f"{error}. End the other one, or use another subscription or --type shared."
        case NotReadyError():
            return f"{error}. {_NEXT}"
        case AdminNotReadyError():
            return f"{error}. {'The request was not carried out. ' * changes}{_NEXT}"
        case InDoubtError() if not changes:
            return f"{error}. {_NEXT}"
        case InDoubtError():
            return f"{error}. The request may have been carried out: look before you try it again."
        case TlsError():
            return (
                f"{in_options(error)}. The options are --tls-trusted, --tls-certificate and"
                " --tls-key."
            )
        case (
            CredentialsError() | RefusedError(code=pb.AuthenticationError) | AdminError(status=401)
        ):
            return (
                f"{in_options(error)}. The options are --token-file, and --basic-user with"
                " --basic-password-file."
            )
        case BrokerError() | ValueError():
            return f"{error}."
        case _:
            return None
