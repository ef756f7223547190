"""One auditor for the whole cluster: elected by who stood first, in BookKeeper's own records.

    <root>/underreplication/auditorelection          what the elected one calls itself
    <root>/underreplication/auditorelection/V_<n>    ephemeral: a candidate

The lowest number is elected; everybody else watches the one before itself.  An auditor that was
cut off may believe for a moment that it still is one: what it does then is safe, for it only adds
marks.
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
    """A candidate: `run` stands for election, and works while elected, for ever."""

    def __init__(self, store: MetadataStore, paths: LedgerPaths, who: str) -> None:
        self.elected = False
        self._store = store
        self._path = f"{paths.underreplication}/auditorelection"
        self._vote = text_format.MessageToString(AuditorVoteFormat(bookieId=who)).encode()

    async def auditor(self) -> str | None:
        """Who is elected at the moment, by its vote; None if nobody stands."""
        for name in await self._candidates():
            record = await self._store.get(f"{self._path}/{name}")
            if record is not None:
                return _decode_vote(record.value)
        return None

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do `work`, which does not end, while elected; cancel it when the vote is gone."""
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
        """Our vote: one that this session has cast already, else a new one."""
        while True:
            for name in await self._candidates():
                record = await self._store.get(f"{self._path}/{name}")
                if record is not None and record.stat.owner == self._store.session_id:
                    return name
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
                    await self._store.set(self._path, self._vote, ANY)  # Only for who looks there.
                return True
            changed = trio.Event()
            if await self._store.get(f"{self._path}/{before[-1]}", changed.set) is None:
                continue
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, changed, nursery)
                nursery.start_soon(_cancel_after, gone, nursery)
        return False

    async def _follow(self, vote: str, gone: trio.Event) -> None:
        """Somebody may have removed our vote: then another one is elected."""
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
