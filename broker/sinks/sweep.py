"""The leader's look at sinks: it rolls forward what is committed and not applied.

A driver may be gone, and the owner of a topic may not have heard of a batch: it is asked here,
which loads the topic.  Records that nobody asks for any more are removed.  Two leaders, or none, do
no harm, because every step is a compare-and-swap.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import trio

from daybook.broker.errors import BrokerError
from daybook.managed_ledger.sinks.cleaning import StagingCleaner
from daybook.managed_ledger.sinks.commit import Sinks
from daybook.managed_ledger.sinks.errors import SinkError
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.metadata.store import MetadataError

SWEEP_S = 10.0
RECORDS_S = 3600.0

RollForward: TypeAlias = Callable[[str], Awaitable[Mapping[str, str]]]
"""Rolls one sink forward, and returns why topic partitions block it, in words."""


class SinkSweep:
    """`leads` returns True if this broker is the leader, or raises MetadataError."""

    def __init__(
        self,
        sinks: Sinks,
        cleaner: StagingCleaner,
        roll_forward: RollForward,
        leads: Callable[[], Awaitable[bool]],
        log: Log,
    ) -> None:
        self._sinks = sinks
        self._cleaner = cleaner
        self._roll_forward = roll_forward
        self._leads = leads
        self._log_limiter = LogLimiter(log)

    async def run(self) -> None:
        records_s = trio.current_time() + RECORDS_S
        while True:
            await trio.sleep(SWEEP_S)
            due = trio.current_time() >= records_s
            try:
                names = await self._sinks.pending.sinks()
                if not (names or due) or not await self._leads():
                    continue
                for name in names:
                    await self._look_at(name)
                if due:
                    records_s = trio.current_time() + RECORDS_S
                    for name in await self._sinks.records.names():
                        await self._cleaner.remove_record(name)
            except (MetadataError, SinkError) as error:
                self._log_limiter.info(
                    "the leader cannot look at sinks now; it tries again",
                    type(error).__name__,
                    why=str(error),
                )

    async def _look_at(self, name: str) -> None:
        try:
            blocked = await self._roll_forward(name)
        except BrokerError as error:
            self._log_limiter.info(
                "a batch of a sink cannot be applied now; the leader tries again",
                name,
                sink=name,
                why=str(error),
            )
            return
        for topic, why in blocked.items():
            self._log_limiter.warning(
                "a batch of a sink is blocked: decide with `daybook sinks resolve`",
                (name, topic),
                sink=name,
                topic=topic,
                why=why,
            )
