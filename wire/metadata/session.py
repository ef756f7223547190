"""The session of a host with the metadata store, as the host sees it; for all implementations.

    SUSPENDED -- contact --> CONNECTED -- no contact --> SUSPENDED
    SUSPENDED or CONNECTED -- the store says: gone --> LOST -- new session --> CONNECTED

Before the first session the state is SUSPENDED and the id 0.  Watches that the store can no longer
fire, because contact was lost, are stranded here and fire at the next CONNECTED or LOST.
"""

from collections.abc import Awaitable, Callable

import trio

from daybook.wire.metadata.paths import ancestors_of
from daybook.wire.metadata.store import (
    AccessDeniedError,
    NoRecordError,
    OutcomeUnknownError,
    RecordExistsError,
    SessionState,
    StoreUnavailableError,
    Watch,
)

_CREATE_ATTEMPTS = 3


class HostSession:
    """State, listeners, and the gate at which requests wait for contact."""

    def __init__(self) -> None:
        self.state = SessionState.SUSPENDED
        self.session_id = 0
        self.closed = False
        self._listeners: list[Callable[[SessionState], None]] = []
        self._stranded: list[Watch] = []
        self._changed = trio.Event()
        self._times_lost = 0

    def add_listener(self, listener: Callable[[SessionState], None]) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[SessionState], None]) -> None:
        self._listeners.remove(listener)

    def strand(self, watch: Watch) -> None:
        """Fire the watch at the next contact or loss of the session, perhaps immediately."""
        if self.closed:
            return
        if self.state is SessionState.SUSPENDED:
            self._stranded.append(watch)
        else:
            watch()

    def move(self, state: SessionState, session_id: int | None = None) -> None:
        if self.closed or state is self.state:
            return
        self.state = state
        if session_id is not None:
            self.session_id = session_id
        if state is SessionState.LOST:
            self._times_lost += 1
        self._wake()
        for listener in list(self._listeners):
            listener(state)
        if state is not SessionState.SUSPENDED:
            stranded, self._stranded = self._stranded, []
            for watch in stranded:
                watch()

    def close(self) -> None:
        """Call no listener or watch any more; raise an error in tasks that wait for contact."""
        self.closed = True
        self._stranded.clear()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_connected(self, timeout_s: float) -> None:
        """Return when there is contact.

        Raise StoreUnavailableError if there is none in this session within `timeout_s`; the request
        of the caller was not sent then.
        """
        if self.state is SessionState.CONNECTED and not self.closed:
            return  # the usual case
        times_lost = self._times_lost
        with trio.move_on_after(timeout_s):
            while not self.closed and self._times_lost == times_lost:
                if self.state is SessionState.CONNECTED:
                    return
                await self._changed.wait()
        if self.closed:
            raise StoreUnavailableError("the session with the metadata store was closed")
        if self._times_lost != times_lost:
            raise StoreUnavailableError("the session with the metadata store was lost")
        raise StoreUnavailableError(
            f"there was no contact with the metadata store for {timeout_s:g} s"
        )


async def create_with_parents(
    path: str, create: Callable[[], Awaitable[str]], create_parent: Callable[[str], Awaitable[str]]
) -> str:
    """Create a record, and its missing parents if the store says that some are missing."""
    denied: AccessDeniedError | None = None
    for _ in range(_CREATE_ATTEMPTS):
        try:
            return await create()
        except NoRecordError:
            if denied is not None:
                raise denied from None
        for parent in ancestors_of(path):
            try:
                await create_parent(parent)
            except RecordExistsError:
                continue
            except AccessDeniedError as error:
                denied = error  # The parent may exist all the same, below a record of others.
            except OutcomeUnknownError as error:
                raise StoreUnavailableError(f"{path} was not created: {error}") from error
            except NoRecordError:
                break  # Another host deletes the parents: look again.
    raise NoRecordError(path)
