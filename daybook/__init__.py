"""Publish, subscribe and read by offset.

    async with daybook.connect("pulsar://localhost:6650") as client: ...     on trio
    async with daybook.aio.connect("pulsar://localhost:6650") as client: ... on asyncio
    with daybook.blocking.connect("pulsar://localhost:6650") as client: ...  without either

Its modules:

    daybook.aio               the same client on asyncio
    daybook.blocking          the same client without trio, for threads and the interactive prompt
    daybook.schemas           typed messages: JSON, Avro, Protobuf, texts, numbers
    daybook.admin             topics, subscriptions and namespaces, by the admin REST of a broker
    daybook.ledgers           ledgers of a BookKeeper cluster, for what needs no topics
    daybook.ledgers.blocking  the same without trio
    daybook.spark             topics as Spark tables and streams
    daybook.testing           a cluster of real processes for tests

Every name is loaded when it is first used, so `import daybook` costs nothing.  The folders `wire`,
`bookie`, `managed_ledger`, `broker` and `clients` below this package are not public.
"""

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daybook import admin as admin
    from daybook import aio as aio
    from daybook import blocking as blocking
    from daybook import ledgers as ledgers
    from daybook import schemas as schemas
    from daybook import spark as spark
    from daybook import testing as testing
    from daybook.clients.python.client import Client as Client
    from daybook.clients.python.connect import connect as connect
    from daybook.clients.python.consumer import Consumer as Consumer
    from daybook.clients.python.credentials import PasswordFile as PasswordFile
    from daybook.clients.python.errors import AdminAuthenticationError as AdminAuthenticationError
    from daybook.clients.python.errors import AdminAuthorizationError as AdminAuthorizationError
    from daybook.clients.python.errors import AdminError as AdminError
    from daybook.clients.python.errors import AdminInDoubtError as AdminInDoubtError
    from daybook.clients.python.errors import AdminNotReadyError as AdminNotReadyError
    from daybook.clients.python.errors import AuthenticationError as AuthenticationError
    from daybook.clients.python.errors import AuthorizationError as AuthorizationError
    from daybook.clients.python.errors import BrokerError as BrokerError
    from daybook.clients.python.errors import BusyError as BusyError
    from daybook.clients.python.errors import ClosedError as ClosedError
    from daybook.clients.python.errors import ConflictError as ConflictError
    from daybook.clients.python.errors import ConnectionLostError as ConnectionLostError
    from daybook.clients.python.errors import CorruptMessageError as CorruptMessageError
    from daybook.clients.python.errors import CredentialsError as CredentialsError
    from daybook.clients.python.errors import EndOfTopicError as EndOfTopicError
    from daybook.clients.python.errors import IncompatibleSchemaError as IncompatibleSchemaError
    from daybook.clients.python.errors import InDoubtError as InDoubtError
    from daybook.clients.python.errors import MessageRejectedError as MessageRejectedError
    from daybook.clients.python.errors import MessageTooLargeError as MessageTooLargeError
    from daybook.clients.python.errors import NotAllowedError as NotAllowedError
    from daybook.clients.python.errors import NotFoundError as NotFoundError
    from daybook.clients.python.errors import NotReadyError as NotReadyError
    from daybook.clients.python.errors import NotSentError as NotSentError
    from daybook.clients.python.errors import Outcome as Outcome
    from daybook.clients.python.errors import OverloadedError as OverloadedError
    from daybook.clients.python.errors import ProducerFencedError as ProducerFencedError
    from daybook.clients.python.errors import QueueFullError as QueueFullError
    from daybook.clients.python.errors import RefusedError as RefusedError
    from daybook.clients.python.errors import Remedy as Remedy
    from daybook.clients.python.errors import RequestTimedOutError as RequestTimedOutError
    from daybook.clients.python.errors import StorageError as StorageError
    from daybook.clients.python.errors import SubscriptionNotFoundError as SubscriptionNotFoundError
    from daybook.clients.python.errors import TlsError as TlsError
    from daybook.clients.python.errors import TopicNotFoundError as TopicNotFoundError
    from daybook.clients.python.errors import TopicTerminatedError as TopicTerminatedError
    from daybook.clients.python.errors import UnavailableError as UnavailableError
    from daybook.clients.python.errors import WrongProtocolError as WrongProtocolError
    from daybook.clients.python.errors import may_retry as may_retry
    from daybook.clients.python.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from daybook.clients.python.interceptors import OutgoingMessage as OutgoingMessage
    from daybook.clients.python.interceptors import ProducerInterceptor as ProducerInterceptor
    from daybook.clients.python.limits import ClientLimits as ClientLimits
    from daybook.clients.python.message_id import EARLIEST as EARLIEST
    from daybook.clients.python.message_id import LATEST as LATEST
    from daybook.clients.python.message_id import MessageId as MessageId
    from daybook.clients.python.message_id import Offset as Offset
    from daybook.clients.python.messages import Message as Message
    from daybook.clients.python.producer import Producer as Producer
    from daybook.clients.python.protocol.letters import DeadLetterPolicy as DeadLetterPolicy
    from daybook.clients.python.reader import OffsetRange as OffsetRange
    from daybook.clients.python.reader import Reader as Reader
    from daybook.clients.python.statistics import ClientStats as ClientStats
    from daybook.clients.python.statistics import ConsumerStats as ConsumerStats
    from daybook.clients.python.statistics import ProducerStats as ProducerStats
    from daybook.clients.python.table_view import TableView as TableView
    from daybook.clients.python.tls import TlsOptions as TlsOptions
    from daybook.clients.python.transformation import Output as Output
    from daybook.wire.version import __version__ as __version__

_NAMES = {
    "daybook.clients.python.client": "Client",
    "daybook.clients.python.connect": "connect",
    "daybook.clients.python.consumer": "Consumer",
    "daybook.clients.python.credentials": "PasswordFile",
    "daybook.clients.python.errors": """
        AdminAuthenticationError AdminAuthorizationError AdminError AdminInDoubtError
        AdminNotReadyError AuthenticationError AuthorizationError BrokerError BusyError ClosedError
        ConflictError ConnectionLostError CorruptMessageError CredentialsError
        EndOfTopicError
        IncompatibleSchemaError InDoubtError MessageRejectedError MessageTooLargeError
        NotAllowedError NotFoundError
        NotReadyError NotSentError Outcome OverloadedError ProducerFencedError
        QueueFullError RefusedError Remedy RequestTimedOutError StorageError
        SubscriptionNotFoundError TlsError TopicNotFoundError TopicTerminatedError
        UnavailableError WrongProtocolError may_retry
    """,
    "daybook.clients.python.interceptors": """
        ConsumerInterceptor OutgoingMessage ProducerInterceptor
    """,
    "daybook.clients.python.limits": "ClientLimits",
    "daybook.clients.python.message_id": "EARLIEST LATEST MessageId Offset",
    "daybook.clients.python.messages": "Message",
    "daybook.clients.python.producer": "Producer",
    "daybook.clients.python.protocol.letters": "DeadLetterPolicy",
    "daybook.clients.python.reader": "OffsetRange Reader",
    "daybook.clients.python.statistics": "ClientStats ConsumerStats ProducerStats",
    "daybook.clients.python.table_view": "TableView",
    "daybook.clients.python.tls": "TlsOptions",
    "daybook.clients.python.transformation": "Output",
    "daybook.wire.version": "__version__",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = ("admin", "aio", "blocking", "ledgers", "schemas", "spark", "testing")

__all__ = [*_WHERE, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"daybook.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'daybook' has no attribute {name!r}")
    value: object = getattr(import_module(_WHERE[name]), name)
    if isinstance(value, type | FunctionType):
        value.__module__ = "daybook"  # so that `help` and tracebacks show the public name
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
