"""How long no client has come without credentials, kept across restarts.

A bookie that begins to demand credentials locks out each client that has none.  So the mode
`require` starts only if the bookie has run in the mode `permit` before, and nobody has come without
credentials, and nobody was connected without, for the last `QUIET_S` of that.  A new bookie has no
clients to lock out, and a bookie that was in `require` stays there.

The file `AUTHENTICATION` in the first directory holds the mode of the last start and that time.  It
is written twice a minute, and at once when somebody comes without credentials.
"""

from collections.abc import Callable
from contextlib import suppress

import msgspec
import trio

from daybook.bookie.server.cookie_validation import StartError
from daybook.bookie.server.entrance import Mode
from daybook.bookie.storage.disk import Disk

QUIET_S = 600.0
_FILE = "AUTHENTICATION"
_INTERVAL_S = 30.0
_PAUSE_S = 1.0  # between two writes, if many come without credentials
_STOP_S = 2.0
_HOSTS_MAX = 10


class PermitRecord:
    """The record of one process.  `check` decides about the start; `run` keeps the record."""

    def __init__(self, disk: Disk, directory: str, mode: Mode) -> None:
        self._disk = disk
        self._path = f"{directory}/{_FILE}"
        self._mode: Mode = mode
        self._quiet_since = 0.0
        self._hosts: dict[str, None] = {}  # the last ones that came without credentials
        self._came = trio.Event()

    async def check(self, *, new: bool, force: bool) -> None:
        """Raise StartError if this bookie must not demand credentials yet.  Write nothing."""
        if self._mode != "require" or new or force:
            return
        if why := _objection(await self._read()):
            raise StartError(
                f'authentication = "require" is refused, because it may lock clients out: {why}.'
                f' Start with authentication = "permit" for {QUIET_S / 60:g} minutes without a'
                " client that lacks credentials (metric"
                " daybook_bookie_server_peers_without_credentials), or set"
                " authentication_force = true"
            )

    async def begin(self) -> None:
        """Write down that the bookie has started in this mode."""
        self._quiet_since = trio.current_time()
        if self._mode != "off" or await self._read() is not None:
            await self._write(unproven=0)

    def came_without(self, host: str) -> None:
        """Note that a client has come without credentials."""
        self._quiet_since = trio.current_time()
        self._hosts.pop(host, None)
        self._hosts[host] = None
        if len(self._hosts) > _HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]
        self._came.set()

    async def run(self, unproven: Callable[[], int]) -> None:
        """Keep the record, until cancelled.  `unproven`: connections without credentials."""
        if self._mode != "permit":
            await trio.sleep_forever()
        try:
            while True:
                with trio.move_on_after(_INTERVAL_S):
                    await self._came.wait()
                self._came = trio.Event()
                await self._write(unproven())
                await trio.sleep(_PAUSE_S)
        finally:
            with trio.move_on_after(_STOP_S) as scope:
                scope.shield = True
                await self._write(unproven())

    async def _write(self, unproven: int) -> None:
        now = trio.current_time()
        if unproven:
            self._quiet_since = now
        record = _Record(self._mode, round(now - self._quiet_since, 1), list(self._hosts))
        with suppress(OSError):  # Without the record the next start demands more, never less.
            await self._disk.write_file(self._path, msgspec.json.encode(record) + b"\n")

    async def _read(self) -> "_Record | None":
        try:
            return msgspec.json.decode(await self._disk.read_file(self._path), type=_Record)
        except (FileNotFoundError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None


class _Record(msgspec.Struct):
    mode: str
    quiet_s: float = 0.0
    without_credentials: list[str] = []


def _objection(before: _Record | None) -> str:
    """Return why the last start does not allow this one, or ""."""
    if before is not None and before.mode == "require":
        return ""
    if before is None or before.mode != "permit":
        return 'the bookie has not run with authentication = "permit" before'
    if not before.quiet_s >= QUIET_S:
        names = ", ".join(before.without_credentials)
        last = f"; the last ones came from {names}" if names else ""
        return f"it was only {before.quiet_s:g} s without a client that lacks credentials{last}"
    return ""
