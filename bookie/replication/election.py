"""The election of the cluster's one auditor, in BookKeeper's own records.

    <root>/underreplication/auditorelection          the name of the elected auditor
    <root>/underreplication/auditorelection/V_<n>    ephemeral: a candidate

The candidate with the lowest number is elected; every other candidate watches the one before it.
An auditor that was cut off may believe for a moment that it is still elected.  This is safe,
because an auditor only adds marks.
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio
from google.protobuf import text_format

from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.metadata.store import (
    ANY,
    MetadataError,
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    RecordExistsError,
    SessionState,
)
from daybook.wire.proto.bookkeeper_metadata_pb2 import AuditorVoteFormat

_VOTE = re.compile(r"V_(\d{10})")
_RETRY_S = 1.0


def _decode_vote(value: bytes) -> str:
    vote = AuditorVoteFormat()
    with suppress(text_format.ParseError, UnicodeDecodeError):
        text_format.Parse(value.decode(), vote)
    return vote.bookieId


class Election:
    """A candidate: `run` stands for election and works while elected, forever."""

    def __init__(self, store: MetadataStore, paths: LedgerPaths, who: str) -> None:
        self.elected = False
        self._store = store
        self._path = f"{paths.underreplication}/auditorelection"
        self._vote = text_format.MessageToString(AuditorVoteFormat(bookieId=who)).encode()

    async def auditor(self) -> str | None:
        """Return the name in the vote that is elected now; None if there is no candidate."""
        for name in await self._candidates():
            record = await self._store.get(f"{self._path}/{name}")
            if record is not None:
                return _decode_vote(record.value)
        return None

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work`, which never ends, while elected; cancel it when the vote is gone."""
        while True:
            try:
                await self._stand(work)
            except* MetadataError:
                await trio.sleep(_RETRY_S)

    async def _stand(self, work: Callable[[], Awaitable[object]]) -> None:
        session_id = self._store.session_id
        vote = await self._cast()
        gone = trio.Event()

        def session_changed(state: SessionState) -> None:
            if state is SessionState.LOST or self._store.session_id != session_id:
                gone.set()

        self._store.add_session_listener(session_changed)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow, vote, gone)
                if await self._wait_elected(vote, gone):
                    self.elected = True
                    nursery.start_soon(work)
                await gone.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.elected = False
            self._store.remove_session_listener(session_changed)

    async def _cast(self) -> str:
        """Return our vote: the one that this session has already cast, or a new one."""
        while True:
            for name in await self._candidates():
                record = await self._store.get(f"{self._path}/{name}")
                if record is not None and record.stat.owner == self._store.session_id:
                    return name
            # A create without an answer may have succeeded: the loop looks for our vote.
            with suppress(OutcomeUnknownError, RecordExistsError):
                await self._store.create(
                    f"{self._path}/V_",
                    self._vote,
                    ephemeral=True,
                    sequential=True,
                    make_parents=True,
                )

    async def _wait_elected(self, vote: str, gone: trio.Event) -> bool:
        while not gone.is_set():
            before = [name for name in await self._candidates() if name < vote]
            if not before:
                with suppress(NoRecordError, OutcomeUnknownError):
                    await self._store.set(self._path, self._vote, ANY)  # Informational.
                return True
            changed = trio.Event()
            if await self._store.get(f"{self._path}/{before[-1]}", changed.set) is None:
                continue  # It left before the watch was set: look for the new predecessor.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, changed, nursery)
                nursery.start_soon(_cancel_after, gone, nursery)
        return False

    async def _follow(self, vote: str, gone: trio.Event) -> None:
        """Set `gone` when our vote is removed: then another candidate is elected."""
        while True:
            changed = trio.Event()
            if await self._store.get(f"{self._path}/{vote}", changed.set) is None:
                gone.set()
                return
            await changed.wait()

    async def _candidates(self) -> list[str]:
        names = await self._store.get_children(self._path) or []
        return sorted(name for name in names if _VOTE.fullmatch(name))


async def _cancel_after(event: trio.Event, nursery: trio.Nursery) -> None:
    await event.wait()
    nursery.cancel_scope.cancel()
