"""The registration of this broker: how it joins the cluster, learns of its removal, and leaves.

A broker is registered under a guard, whose records are written by `ownership.membership`.  Peers
that take this broker for dead delete the guard.  Then it joins again under a new one: at once, or
after a pause if it was removed again and again (`protocol.rejoining`).

A broker that leaves withdraws first.  It joins no more, but keeps its guard and its bundles, and
`stay` takes the withdrawal back.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf

import trio

from daybook.bookie.registry.instance import InstanceBinding
from daybook.broker.namespaces.records import BrokerRecord
from daybook.broker.ownership.membership import (
    DeathCheck,
    Guard,
    Identity,
    Member,
    join,
    remove,
    withdraw,
)
from daybook.broker.protocol.rejoining import RejoinPauses
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore, SessionState, Watch

_RETRY_S = 0.1
_LEAVE_TIMEOUT_S = 2.0  # then the end of the session does the same

WhyNotReached = Callable[[Member], Awaitable[str]]
"""Asks the service port of a broker as its peers do; returns what they find wrong, or ""."""


class Registration:
    """The registration of one broker, over all its sessions."""

    def __init__(
        self,
        store: MetadataStore,
        identity: Identity,
        record: BrokerRecord,
        *,
        formats: Sequence[str],
        is_dead: DeathCheck,
        why_not_reached: WhyNotReached,
        log: Log,
    ) -> None:
        self._store = store
        self._identity = identity
        self._record = record
        self._formats = formats
        self._is_dead = is_dead
        self._why_not_reached = why_not_reached
        self._log = log
        self._guard: Guard | None = None
        self._withdrawn = False
        self._bound: InstanceBinding | None = None
        self._pauses = RejoinPauses()
        self._join_at_s = -inf  # not before, because others have removed this broker
        self._joining = trio.Lock()
        self._put_off: int | None = None  # the term in which this broker would have joined

    @property
    def guard(self) -> Guard | None:
        """Return the guard of the latest join; None before the first one."""
        return self._guard

    @property
    def withdrawn(self) -> bool:
        """True while no bundle may be placed on this broker, or acquired by it."""
        return self._withdrawn

    def bind(self, bound: InstanceBinding) -> None:
        """Join only while the metadata store names that instance."""
        self._bound = bound

    # -- joining

    async def join(self, term: int, wanted: Callable[[], bool]) -> bool:
        """Return True when a guard of this term is written; False once it is not `wanted`.

        Return False, too, after a withdrawal; `stay` then returns the term.
        """
        if trio.current_time() < self._join_at_s:
            await trio.sleep_until(self._join_at_s)
        if self._withdrawn:
            self._put_off = term
            return False
        async with self._joining:  # An earlier attempt, no longer wanted, ends soon.
            guard = await join(
                self._store,
                self._identity,
                self._record,
                formats=self._formats,
                term=term,
                wanted=wanted,
                is_dead=self._is_dead,
                bound=self._bound,
            )
        if guard is None or not wanted():
            return False
        self._guard = guard
        self._pauses.joined(trio.current_time())
        self._log.info("this broker joined the cluster", term=term)
        return True

    async def read_guard(self, wanted: Callable[[], bool], watch: Watch) -> bool | None:
        """Return True if our guard exists, and False if it is gone; the watch then is set.

        This asks again until there is an answer.  Return None if the contact is lost, or the answer
        not `wanted` any more.
        """
        assert self._guard is not None
        path = self._guard.path
        while wanted():
            try:
                record = await self._store.get(path, watch)
            except MetadataError:
                if self._store.session_state is not SessionState.CONNECTED:
                    return None
                await trio.sleep(_RETRY_S)
                continue
            return record is not None and record.stat.owner == self._store.session_id
        return None

    def note_removal(self) -> float:
        """Put the next join off, if others have removed this broker again and again.

        Return by how much; `tell_removal` finds out why.
        """
        pause_s = self._pauses.removed(trio.current_time())
        if pause_s:
            self._join_at_s = trio.current_time() + pause_s
        else:
            self._log.warning("another broker took this one for dead; it joins again at once")
        return pause_s

    async def tell_removal(self, pause_s: float) -> None:
        """Log why others may have removed this broker again and again."""
        why = await self._why_not_reached(self._me())
        self._log.warning(
            "other brokers remove this one again and again, because they take it for dead: it"
            " waits before it joins again",
            pause_s=pause_s,
            why=why or "this broker reaches itself, so ask the logs of the others why they do not",
        )

    def _me(self) -> Member:
        return Member(self._identity.broker_id, self._store.session_id, self._record)

    # -- leaving

    async def withdraw(self) -> bool:
        """Begin to leave: no bundle is placed on this broker or acquired by it from now on.

        Return False if the store did not confirm it: bundles may still be placed here.
        """
        self._withdrawn = True  # before any checkpoint: nothing is loaded or acquired from now on
        if self._guard is None:
            return True  # This broker has never joined.
        with trio.move_on_after(_LEAVE_TIMEOUT_S), suppress(MetadataError):
            await withdraw(self._store, self._identity.broker_id, self._guard)
            return True
        return False

    def stay(self) -> int | None:
        """Take the withdrawal back.  Return the latest term whose join was put off, if any."""
        self._withdrawn = False
        term, self._put_off = self._put_off, None
        return term

    async def leave(self) -> None:
        """Finish leaving: delete our records, so that no peer has to find out that we are gone."""
        with trio.move_on_after(_LEAVE_TIMEOUT_S), suppress(MetadataError):
            await remove(self._store, self._me())
