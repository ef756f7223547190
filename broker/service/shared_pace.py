"""How long a request waits for its refusal because its role, or its address, is refused too often.

The port for clients and the ports for HTTP share the pace (`protocol.refusal_paces`).  The culprit
is the role that the client has proven, and otherwise its address: without authentication, with
wrong credentials, or with none (`anonymous_role`).  A proxy is a culprit for whom it asks.  Super
users have no such pace: brokers have their role, and work for everybody.
"""

from collections.abc import Container
from typing import Literal, TypeAlias

import trio

from daybook.broker.errors import BrokerError, UnavailableError
from daybook.broker.protocol.refusal_paces import Culprit, Kind, RefusalPaces
from daybook.broker.security.identity import Caller
from daybook.broker.service.places import address_of
from daybook.broker.service.request_counts import RequestCounts
from daybook.wire.logging import Log, LogLimiter

Port: TypeAlias = Literal["service", "http"]
_REASON_CHARS_MAX = 200
_ANONYMOUS = "anonymous"  # the method of an identity that nothing proves


class SharedPace:
    """One instance per broker."""

    def __init__(self, super_users: Container[str], counts: RequestCounts, log: Log) -> None:
        self._super_users = super_users
        self._counts = counts
        self._log = LogLimiter(log)
        self._paces = RefusalPaces()

    def delay_s(self, error: BrokerError, caller: Caller | None, peer: str, port: Port) -> float:
        """Return how long a request that is refused now with this error has to wait.

        `caller` is None if the client has proven no role; `peer` is its address and port.
        """
        if isinstance(error, UnavailableError):
            return 0.0  # It is not the client's fault, and the next try may succeed.
        culprit = self._culprit(caller, peer)
        if culprit is None:
            return 0.0
        delay_s = self._paces.delay_s(culprit, trio.current_time())
        if delay_s:
            self._counts.held[port, culprit.kind.value] += 1
            self._log.info(
                "a role or an address is refused too often, so its refusals are delayed",
                kind=culprit,
                **{culprit.kind.value: culprit.name},
                last_why=error.reason[:_REASON_CHARS_MAX],
            )
        return delay_s

    def _culprit(self, caller: Caller | None, peer: str) -> Culprit | None:
        if caller is None or (caller.identity.method == _ANONYMOUS and not caller.original):
            return Culprit(Kind.ADDRESS, address_of(peer))
        if caller.role in self._super_users:
            return None
        return Culprit(Kind.ROLE, caller.role)
