"""The admin client on asyncio: the same methods as `clients.python.admin.Admin`.

    async with daybook.aio.connect_admin("http://localhost:8080") as admin:
        await admin.create_topic("orders", partitions=4)

Its requests run under trio on top of the event loop (`guest.py`), without another thread.
"""

from types import TracebackType

from daybook.clients.python import admin as trio_admin
from daybook.clients.python.arguments import check_timeout
from daybook.clients.python.credentials import Basic, Token
from daybook.clients.python.guest import Guest
from daybook.clients.python.http import HttpResponse
from daybook.clients.python.tls import TlsOptions


class connect_admin:  # noqa: N801  (it is used like a function)
    """`async with connect_admin(admin_url) as admin:`; `timeout_s` is for one request."""

    def __init__(
        self,
        admin_url: str,
        *,
        token: Token | None = None,
        basic: Basic | None = None,
        timeout_s: float = 60.0,
        tls: TlsOptions | None = None,
    ) -> None:
        check_timeout("timeout_s", timeout_s)
        self._admin = Admin(admin_url, token=token, basic=basic, timeout_s=timeout_s, tls=tls)
        self._guest: Guest | None = None

    async def __aenter__(self) -> "Admin":
        self._guest = await Guest.enter()
        self._admin.attach(self._guest)
        return self._admin

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._guest is not None
        self._admin.attach(None)
        await self._guest.leave()


class Admin(trio_admin.Admin):
    """See `clients.python.admin.Admin`; `connect_admin` makes it."""

    _guest: Guest | None = None

    def attach(self, guest: Guest | None) -> None:
        """Set the guest that carries out requests; None when the block has ended."""
        self._guest = guest

    async def _request(self, method: str, target: str, data: bytes | None) -> HttpResponse:
        # Every method ends here, and does nothing else that waits.
        if self._guest is None:
            raise RuntimeError("use this admin client inside of `async with connect_admin(...)`")
        return await self._guest.call(super()._request, method, target, data)
