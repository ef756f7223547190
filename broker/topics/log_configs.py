"""How the logs of a namespace's topics are kept: copies, and for how long.

Copies of a new ledger: by the namespace's persistence policy, by the settings, or ("auto") by what
bookies there are.  Retention: by the namespace's policy, or the settings.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import trio

from daybook.bookie.ledger.client import Quorums
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.paths import LedgerPaths
from daybook.broker.config import BrokerConfig, QuorumsConfig
from daybook.broker.errors import BrokerError, UnavailableError
from daybook.broker.namespaces.policies import Persistence, Policies, Retention
from daybook.managed_ledger.context import LogConfig
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.protocol import trim
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore
from daybook.wire.topics import TopicName

_MINUTE_MS = 60_000
_MB = 1 << 20
_SNAPSHOT_BYTES_MAX = 4 * _MB  # and no more than a bookie's frame takes, as entries of topics


def automatic(bookies: int) -> Quorums:
    """For a cluster of so many bookies: three copies, or what it allows."""
    match bookies:
        case 1:
            return Quorums(1, 1, 1)
        case 2:
            return Quorums(2, 2, 2)
        case _:
            return Quorums(3, 3, 2)


def retained(policy: Retention) -> trim.Retention:
    minutes, megabytes = policy.retentionTimeInMinutes, policy.retentionSizeInMB
    return trim.Retention(
        None if minutes < 0 else minutes * _MINUTE_MS, None if megabytes < 0 else megabytes * _MB
    )


class LoadedTopic(Protocol):
    @property
    def name(self) -> TopicName: ...

    @property
    def log(self) -> object: ...


class LoadedTopics(Protocol):
    @property
    def loaded(self) -> Mapping[str, LoadedTopic]: ...


class LogConfigs:
    """What is in force for a namespace at this moment."""

    def __init__(
        self,
        store: MetadataStore,
        paths: LedgerPaths,
        policies: Policies,
        config: BrokerConfig,
        log: Log,
        base: LogConfig | None = None,
    ) -> None:
        """`base`: what no setting says."""
        self._store = store
        self._paths = paths
        self._policies = policies
        self._config = config
        self._log = log
        self._base = base or LogConfig()
        self._warned = False

    async def of(self, namespace: str) -> LogConfig:
        """Raises NotFoundError, UnavailableError."""
        policies = await self._policies.namespace(namespace)
        return replace(
            self._base,
            quorums=await self._quorums(policies.persistence),
            retention=retained(policies.retention),
            roll_entries=self._config.roll_entries,
            roll_age_s=self._config.roll_age_s,
            roll_age_min_s=self._config.roll_age_min_s,
            list_bytes_max=self._config.ledger_list_bytes_max,
            cursor_roll_records=self._config.cursor_roll_records,
            cursor_snapshot_records=self._config.cursor_snapshot_records,
            cursor_snapshot_s=self._config.cursor_snapshot_s,
            cursor_snapshot_bytes_max=min(_SNAPSHOT_BYTES_MAX, self._config.max_message_size),
        )

    async def may_create(self, namespace: str) -> bool:
        """False while the namespace is being deleted: a new log would be missed."""
        return not (await self._policies.namespace(namespace)).deleted

    async def _quorums(self, persistence: Persistence | None) -> Quorums:
        if persistence is not None:
            return Quorums(
                persistence.bookkeeperEnsemble,
                persistence.bookkeeperWriteQuorum,
                persistence.bookkeeperAckQuorum,
            )
        configured = self._config.quorums
        if isinstance(configured, QuorumsConfig):
            return Quorums(configured.ensemble, configured.write, configured.ack)
        try:
            known = len(await known_bookies(self._store, self._paths))
        except MetadataError as error:
            raise UnavailableError(f"the bookies: {error}") from error
        if known < 3 and not self._warned:
            self._warned = True
            self._log.warning("too few bookies for three copies", bookies=known)
        return automatic(known)


async def keep_current(configs: LogConfigs, topics: LoadedTopics, interval_s: float) -> None:
    """Have the logs of loaded topics follow the policies of their namespaces."""
    while True:
        await trio.sleep(interval_s)
        for topic in list(topics.loaded.values()):
            with suppress(BrokerError):  # Gone, or out of reach: what was in force stays.
                config = await configs.of(topic.name.namespace)
                if isinstance(topic.log, ManagedLedger):
                    topic.log.config = config
