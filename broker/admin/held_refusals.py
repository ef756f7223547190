"""Delays the refusals of HTTP requests of a role or an address that is refused too often.

The pace is that of the port for clients (`service.shared_pace`).  A request that waits has the
first connection that is cut when there are too many, so it keeps nobody out.
"""

from contextlib import nullcontext

import trio
from starlette.requests import Request

from daybook.broker.errors import BrokerError
from daybook.broker.security.identity import CALLER
from daybook.broker.service.shared_pace import SharedPace
from daybook.wire.http import GIVING_WAY


class HeldRefusals:
    """One instance per broker.  Without a pace, nothing is delayed."""

    def __init__(self, pace: SharedPace | None = None) -> None:
        self._pace = pace

    async def hold(self, request: Request, error: BrokerError) -> None:
        """Wait until a request that has this error may be refused."""
        client = request.client
        if self._pace is None or client is None:
            return
        peer = f"{client.host}:{client.port}"
        delay_s = self._pace.delay_s(error, CALLER.get(), peer, "http")
        if delay_s:
            giving_way = request.scope.get("state", {}).get(GIVING_WAY, nullcontext)
            with giving_way():
                await trio.sleep(delay_s)
