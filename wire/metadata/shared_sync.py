"""Which reads share a sync.

A read has to follow a sync that was sent after the read was asked for.  Only one such sync is under
way at a time: a read that is asked for meanwhile waits until it ends, and then one sync serves all
that wait.  So a read that comes alone waits for nobody, and many that come together share two.

A sync concerns the whole connection.  ZooKeeper's leader answers it behind the writes that it has
proposed so far, and the server of the connection answers it when it has them; the path only comes
back in the answer.  The answer names a transaction that any server has to know which takes the
session over, so a read may follow the answer over another connection, and not in another session.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from daybook.wire.metadata.store import NoRecordError, StoreUnavailableError

T = TypeVar("T")


class _Sync:
    """A sync that is under way.  `session_id` is the session of its good answer, or 0."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.session_id = 0
        self.failed = False
        self.ended = trio.Event()


class SharedSyncs:
    """The syncs of one host.  `session_id` returns the id of its session."""

    def __init__(self, session_id: Callable[[], int]) -> None:
        self._session_id = session_id
        self._sent = 0
        self._under_way: _Sync | None = None

    async def read(
        self, sync_and_read: Callable[[], Awaitable[T]], read: Callable[[], Awaitable[T]]
    ) -> T:
        """Return what a read finds behind a sync that was sent after this call began.

        Either `sync_and_read` is called, or `read` behind the sync of another caller.
        """
        sent_before = self._sent
        while (sync := self._under_way) is not None:
            await sync.ended.wait()
            if sync.number <= sent_before:
                continue  # It was sent before this call, and may lack what was written since.
            if sync.failed:  # Each caller in turn would wait for the next one to fail.
                raise StoreUnavailableError("the metadata store did not answer to a sync")
            if sync.session_id:
                return await self._read_behind(sync, read)
        return await self._lead(sync_and_read)

    async def _lead(self, sync_and_read: Callable[[], Awaitable[T]]) -> T:
        self._sent += 1
        sync = self._under_way = _Sync(self._sent)
        session_id = self._session_id()
        try:
            answer = await sync_and_read()
        except NoRecordError:  # The sync has a good answer, since it concerns no record.
            self._good(sync, session_id)
            raise
        except Exception:
            sync.failed = True
            raise
        else:
            self._good(sync, session_id)
        finally:  # If this caller was cancelled, another one sends the next sync.
            self._under_way = None
            sync.ended.set()
        return answer

    def _good(self, sync: _Sync, session_id: int) -> None:
        # A request that waited for contact may have been sent in another session.
        if self._session_id() == session_id:
            sync.session_id = session_id

    async def _read_behind(self, sync: _Sync, read: Callable[[], Awaitable[T]]) -> T:
        answer = await read()
        if self._session_id() != sync.session_id:
            # The new session may be with a server that is behind, and that did not sync.
            raise StoreUnavailableError("the session was lost between a sync and a read behind it")
        return answer
