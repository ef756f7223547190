"""The rights of one client: each of its commands is checked here before it is carried out."""

from typing import Any

from daybook.broker.context import BrokerContext
from daybook.broker.errors import AuthorizationError
from daybook.broker.security.grants import is_of_reader, is_short
from daybook.broker.security.identity import Caller, on_behalf
from daybook.broker.security.resources import of_topic
from daybook.broker.security.rights import Right, right_of_command
from daybook.broker.service.command_bodies import resource_of, topic_name
from daybook.broker.service.connection import ClientConnection
from daybook.wire.messages.registry import type_name
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName

T = pb.BaseCommand
_AUDITED = (T.PRODUCER, T.SUBSCRIBE)  # noted when they are allowed, too


class ClientRights:
    """The rights of the client of one connection.  Without authorization it may do everything."""

    def __init__(self, connection: ClientConnection, broker: BrokerContext) -> None:
        self._connection = connection
        self._broker = broker

    @property
    def role(self) -> str:
        """Return the role that the client has proven; "" if it was not asked."""
        caller = self._connection.caller
        return "" if caller is None else caller.identity.role

    async def check(self, command: int, body: Any) -> None:  # noqa: ANN401
        """Raise AuthorizationError if the client lacks the right that the command needs."""
        authorization, caller = self._broker.authorization, self._connection.client.caller
        right = right_of_command(command)
        if authorization is None or caller is None or right is Right.IDENTIFIED:
            return
        resource, error = resource_of(command, body), None
        try:
            if command in (T.LOOKUP, T.PARTITIONED_METADATA):
                caller = self._asking(caller, body.original_principal)
            await authorization.check(caller, right, resource)
            if command == T.PRODUCER and body.initial_subscription_name:
                initial = of_topic(topic_name(body.topic), body.initial_subscription_name)
                await authorization.check(caller, Right.CONSUME, initial)
        except AuthorizationError as refused:
            error = refused
            raise
        finally:
            audit = self._broker.audit
            if audit is not None and (error is not None or command in _AUDITED):
                name, peer = type_name(command), self._connection.peer
                audit.note(name, peer, caller, str(resource), error)

    async def reader_of(self, body: pb.CommandSubscribe) -> str:
        """Return the role whose reader subscribes; "" for other consumers, and without rights."""
        authorization, caller = self._broker.authorization, self._connection.caller
        name = body.subscription
        if authorization is None or not authorization.on or caller is None:
            return ""
        if not is_of_reader(name, durable=body.durable):
            return ""
        if is_short(name):
            # Where names need no prefix, roles may share a subscription with a name like that.
            namespace = topic_name(body.topic).namespace
            return caller.role if await authorization.demands_prefix(namespace) else ""
        return caller.role

    @property
    def changes(self) -> int:
        """Return a number that grows when rights of anybody have changed."""
        authorization = self._broker.authorization
        return 0 if authorization is None else authorization.changes

    def recheck_since(self, changes: int, topic: TopicName) -> None:
        """Check the rights again if they have changed since an opening began.

        A right that was revoked after it was checked, and before the producer or consumer was
        there to be closed, would be kept otherwise.
        """
        authorization = self._broker.authorization
        if authorization is not None and authorization.changes != changes:
            authorization.recheck(topic.namespace)

    def _asking(self, caller: Caller, original: str) -> Caller:
        """Return the caller of a lookup: proxies look up for many clients on one connection."""
        if not original or original == caller.original:
            return caller
        return on_behalf(caller.identity, original, proxies=self._broker.config.proxy_roles)
