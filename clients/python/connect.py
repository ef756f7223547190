"""The entry point: a client of one cluster, for the length of a block.

    async with daybook.connect("pulsar://localhost:6650") as client:
        async with await client.create_producer("orders") as producer:
            await producer.send(b"...", key="customer-7")
        async with await client.subscribe("orders", "billing") as consumer:
            message = await consumer.receive()
            await consumer.ack(message)

Everything that a client opens lives in its block.  The end of the block stores what was sent and
closes everything; if the block ends with an error or a cancellation, everything is closed at once.
An exception of the application leaves the block as it is, not in an exception group.

The block is entered when a broker has answered, so a wrong address is an error here and not at the
first message.  `timeout_s` bounds this first contact; with None the block is entered without it.

Network, clock and random numbers are arguments, so that a client also runs in a simulation; the
defaults are those of the machine.
"""

from collections.abc import Generator
from random import Random, SystemRandom
from types import TracebackType
from typing import NoReturn

import trio

from daybook.clients.python.arguments import check_timeout, check_url
from daybook.clients.python.client import Client
from daybook.clients.python.credentials import Basic, Credentials, Token
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.tls import TlsOptions, network_for
from daybook.wire.clock import SystemClock, WallClock
from daybook.wire.tcp import TcpNetwork
from daybook.wire.transport import Network

_SEED_BITS = 64
_USE = "write `async with daybook.connect(...) as client:`"
FIRST_CONTACT_S = 5.0


def _check_trio() -> None:
    """Raise RuntimeError, with advice, outside of trio."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise RuntimeError(
            "daybook.connect needs trio, which does not run here.  Run the program with"
            " trio.run(main), or use daybook.aio.connect under asyncio, or daybook.blocking.connect"
            " without an event loop."
        ) from None


class connect:  # noqa: N801  (it is used like a function)
    """`async with connect(service_url) as client:`; see the module.

    `service_url` names the brokers: `pulsar://host:6650`, or several hosts with commas between.
    `pulsar+ssl://host:6651` is for TLS, and `tls` says whom the client trusts.  `token` or `basic`
    prove who the client is; see `credentials`.
    Raise UnavailableError if no broker answers within `timeout_s`, WrongProtocolError as soon as
    another server answers, and TlsError as soon as TLS is refused.
    """

    def __init__(
        self,
        service_url: str,
        *,
        token: Token | None = None,
        basic: Basic | None = None,
        timeout_s: float | None = FIRST_CONTACT_S,
        limits: ClientLimits | None = None,
        tls: TlsOptions | None = None,
        network: Network | None = None,
        clock: WallClock | None = None,
        rng: Random | None = None,
    ) -> None:
        _check_trio()
        check_url("service_url", service_url)
        check_timeout("timeout_s", timeout_s)
        self._credentials = Credentials(token, basic)
        self._service_url = service_url
        self._timeout_s = timeout_s
        self._limits = limits or ClientLimits()
        self._network = network_for(service_url, tls, network or TcpNetwork())
        self._clock = clock or SystemClock()
        self._rng = rng or Random(SystemRandom().getrandbits(_SEED_BITS))  # noqa: S311
        self._manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None
        self._client: Client | None = None

    def __await__(self) -> Generator[None, None, NoReturn]:
        raise TypeError(f"daybook.connect is not awaited: {_USE}")

    def __enter__(self) -> NoReturn:
        raise TypeError(
            f"daybook.connect is for trio: {_USE}, or daybook.blocking.connect without trio"
        )

    def __exit__(self, *error: object) -> None:
        raise AssertionError("nothing was entered")

    async def __aenter__(self) -> Client:
        nursery = self._nursery = await self._manager.__aenter__()
        try:
            self._client = Client(
                self._service_url,
                network=self._network,
                clock=self._clock,
                rng=self._rng,
                limits=self._limits,
                nursery=nursery,
                credentials=self._credentials,
            )
            if self._timeout_s is not None:
                await self._client.first_contact(self._timeout_s)
        except BaseException as error:
            if isinstance(error, trio.Cancelled):
                await self._leave(type(error), error, error.__traceback__)
            else:
                await self._leave(None, None, None)
            raise
        return self._client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._client is not None
        failure: Exception | None = None
        try:
            if error is None:
                try:
                    await self._client.aclose()
                except Exception as closing:
                    failure = closing
        finally:
            self._client.abandon()
            # The nursery sees only its own cancellation.  So an exception of the application leaves
            # the block as it is, and not in a group.
            if isinstance(error, trio.Cancelled):
                swallowed = await self._leave(kind, error, trace)
            else:
                swallowed = await self._leave(None, None, None)
        if failure is not None:
            raise failure
        return swallowed if isinstance(error, trio.Cancelled) else None

    async def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        try:
            return await self._manager.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1 and isinstance(group.exceptions[0], Exception):
                raise group.exceptions[0] from None
            raise
