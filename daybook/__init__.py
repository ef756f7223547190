"""Daybook: publish, subscribe and read by offset.

    async with daybook.connect("pulsar://localhost:6650") as client: ...     on trio
    with daybook.blocking.connect("pulsar://localhost:6650") as client: ...  without

and, below topics, the ledgers of a BookKeeper cluster:

    async with daybook.ledgers.connect("zk://localhost:2181/ledgers") as client: ...

What is here is loaded when it is first used, so that `import daybook` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clients import ledgers as ledgers
    from clients import spark as spark
    from clients import testing as testing
    from clients.python import admin as admin
    from clients.python import blocking as blocking
    from clients.python.client import Client as Client
    from clients.python.connect import connect as connect
    from clients.python.consumer import Consumer as Consumer
    from clients.python.errors import AdminError as AdminError
    from clients.python.errors import AdminInDoubtError as AdminInDoubtError
    from clients.python.errors import BrokerError as BrokerError
    from clients.python.errors import BusyError as BusyError
    from clients.python.errors import ClosedError as ClosedError
    from clients.python.errors import ConflictError as ConflictError
    from clients.python.errors import ConnectionLostError as ConnectionLostError
    from clients.python.errors import CorruptMessageError as CorruptMessageError
    from clients.python.errors import EndOfTopicError as EndOfTopicError
    from clients.python.errors import InDoubtError as InDoubtError
    from clients.python.errors import MessageTooLargeError as MessageTooLargeError
    from clients.python.errors import NotAllowedError as NotAllowedError
    from clients.python.errors import NotFoundError as NotFoundError
    from clients.python.errors import NotReadyError as NotReadyError
    from clients.python.errors import NotSentError as NotSentError
    from clients.python.errors import Outcome as Outcome
    from clients.python.errors import OverloadedError as OverloadedError
    from clients.python.errors import ProducerFencedError as ProducerFencedError
    from clients.python.errors import QueueFullError as QueueFullError
    from clients.python.errors import RefusedError as RefusedError
    from clients.python.errors import Remedy as Remedy
    from clients.python.errors import RequestTimedOutError as RequestTimedOutError
    from clients.python.errors import StorageError as StorageError
    from clients.python.errors import SubscriptionNotFoundError as SubscriptionNotFoundError
    from clients.python.errors import TopicNotFoundError as TopicNotFoundError
    from clients.python.errors import TopicTerminatedError as TopicTerminatedError
    from clients.python.errors import UnavailableError as UnavailableError
    from clients.python.errors import WrongProtocolError as WrongProtocolError
    from clients.python.errors import may_retry as may_retry
    from clients.python.limits import ClientLimits as ClientLimits
    from clients.python.messages import EARLIEST as EARLIEST
    from clients.python.messages import LATEST as LATEST
    from clients.python.messages import Message as Message
    from clients.python.messages import MessageId as MessageId
    from clients.python.messages import Offset as Offset
    from clients.python.producer import Producer as Producer
    from clients.python.reader import OffsetRange as OffsetRange
    from clients.python.reader import Reader as Reader

__version__ = "0.1.0"

_NAMES = {
    "clients.python.client": "Client",
    "clients.python.connect": "connect",
    "clients.python.consumer": "Consumer",
    "clients.python.errors": """
        AdminError AdminInDoubtError BrokerError BusyError ClosedError ConflictError
        ConnectionLostError CorruptMessageError EndOfTopicError InDoubtError
        MessageTooLargeError NotAllowedError NotFoundError NotReadyError NotSentError
        Outcome OverloadedError ProducerFencedError QueueFullError RefusedError Remedy
        RequestTimedOutError StorageError SubscriptionNotFoundError TopicNotFoundError
        TopicTerminatedError UnavailableError WrongProtocolError may_retry
    """,
    "clients.python.limits": "ClientLimits",
    "clients.python.messages": "EARLIEST LATEST Message MessageId Offset",
    "clients.python.producer": "Producer",
    "clients.python.reader": "OffsetRange Reader",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = {
    "admin": "clients.python.admin",
    "blocking": "clients.python.blocking",
    "ledgers": "clients.ledgers",
    "spark": "clients.spark",
    "testing": "clients.testing",
}


def __getattr__(name: str) -> object:
    value: object
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'daybook' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, *_MODULES})
