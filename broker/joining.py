"""The steps of a broker in its cluster before it announces itself.

A broker first checks that its ledgers are those of the topics, before it writes anything.  Then it
creates the first namespace, waits for bookies that start at the same time, and asks them whether
they let it in.  While the metadata store does not answer, each step is tried again.
"""

from random import Random

import trio

from daybook.bookie.errors import RegistryError
from daybook.bookie.ledger.client import LedgerClient
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import writable_bookies
from daybook.broker.config import BrokerConfig
from daybook.broker.errors import CannotJoinError, UnavailableError
from daybook.broker.namespaces.records import ClusterData
from daybook.broker.namespaces.tenancy import Tenancy
from daybook.broker.ownership.membership import Identity, check_others
from daybook.broker.ownership.ownership import Ownership
from daybook.managed_ledger.binding import bind
from daybook.managed_ledger.errors import ForeignListsError
from daybook.managed_ledger.open import ManagedLedgers
from daybook.managed_ledger.tree import tree_id
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore

_RETRY_S = 0.2
_BOOKIES_WANTED = 3
_BOOKIES_SETTLE_S = 2.0
_BOOKIES_NONE_S = 10.0
_ASKED_EVERY_S = 0.2  # The first bookie usually answers before the second one is asked.
_ASKED_S = 10.0  # more than a connection with TLS and a password may take


async def bind_to_ledgers(
    config: BrokerConfig,
    store: MetadataStore,
    rng: Random,
    ledgers: ManagedLedgers,
    ownership: Ownership,
    log: Log,
) -> None:
    """Check that our ledgers are those of the topics.  Raise CannotJoinError.

    This comes before the broker writes anything, so after the error nothing has changed.
    """
    paths = LedgerPaths(config.ledgers_root)
    where = f"{config.zookeeper} below {config.ledgers_root}"
    while True:
        try:
            bound = await bind(store, paths, rng, where)
            if bound is not None:
                await check_others(store, bound)
            ledgers.name_tree(await tree_id(store, rng))
            break
        except (RegistryError, ForeignListsError) as error:
            raise CannotJoinError(f"this broker cannot join the cluster: {error}") from error
        except MetadataError as error:
            log.warning(
                "the broker cannot check yet that the topics belong to its ledgers; it tries again",
                why=str(error),
            )
            await trio.sleep(_RETRY_S)
    if bound is None:
        log.warning(
            "the ledgers have no INSTANCEID, because an old BookKeeper made them: if another"
            " broker has a wrong ledgers_root, only the names in ledgers show that",
            root=config.ledgers_root,
        )
        return
    ledgers.bind(bound.instance_id)
    ownership.bind(bound)


async def prepare_cluster(
    config: BrokerConfig, store: MetadataStore, identity: Identity, tenancy: Tenancy, log: Log
) -> None:
    """Create the first namespace; wait for bookies, so that first topics get all copies."""
    data = ClusterData(
        service_url=identity.http_url,
        service_url_tls=identity.http_url_tls,
        broker_service_url=identity.service_url,
        broker_service_url_tls=identity.service_url_tls,
    )
    while True:
        try:
            await _warn_of_new_cluster(config.cluster, tenancy, log)
            await tenancy.bootstrap(data)
            break
        except (MetadataError, UnavailableError) as error:
            log.warning(
                "the broker cannot create the first namespace yet; it tries again", why=str(error)
            )
            await trio.sleep(_RETRY_S)
    if config.quorums == "auto":
        await _wait_for_bookies(store, LedgerPaths(config.ledgers_root))


async def _warn_of_new_cluster(cluster: str, tenancy: Tenancy, log: Log) -> None:
    """Warn if the cluster name is new beside others: that may be a mistake."""
    names = await tenancy.clusters()
    if names and cluster not in names:
        log.warning(
            "the setting `cluster` of this broker is new in this ZooKeeper: correct it if it is"
            " a mistake. The broker serves the same topics as the others, and namespaces"
            " created through it belong to this cluster name",
            cluster=cluster,
            others=", ".join(names),
        )


async def _wait_for_bookies(store: MetadataStore, paths: LedgerPaths) -> None:
    """Return when there are three bookies, or when no more appear for a while.

    Bookies that start at the same time as this broker take a moment to register.
    """
    known, since = 0, trio.current_time()
    while known < _BOOKIES_WANTED:
        try:
            found = len(await known_bookies(store, paths))
        except MetadataError:
            found = known
        if found != known:
            known, since = found, trio.current_time()
        patience_s = _BOOKIES_SETTLE_S if known else _BOOKIES_NONE_S
        if trio.current_time() - since >= patience_s:
            return
        await trio.sleep(_RETRY_S)


async def check_bookies(client: LedgerClient, store: MetadataStore, paths: LedgerPaths) -> None:
    """Raise CannotJoinError if all bookies that answer refuse this broker.

    It would take bundles, and could serve none of them.  A broker may start before all bookies.
    """
    try:
        asked = await writable_bookies(store, paths)
    except (MetadataError, RegistryError):
        return  # Nothing is known of any bookie.
    bookies = client.context.bookies
    with trio.move_on_after(_ASKED_S):
        async with trio.open_nursery() as nursery:

            async def ask(bookie: BookieId, after_s: float) -> None:
                await trio.sleep(after_s)
                if await bookies.probe(bookie):
                    nursery.cancel_scope.cancel()

            for index, bookie in enumerate(asked):
                nursery.start_soon(ask, BookieId(bookie), index * _ASKED_EVERY_S)
        if nursery.cancel_scope.cancelled_caught:
            return
    refusals = list(filter(None, (bookies.refusal_of(BookieId(bookie)) for bookie in asked)))
    if refusals:
        raise CannotJoinError(
            f"this broker could serve no topic, because all bookies that answer refuse it"
            f" ({len(refusals)} of {len(asked)}): {refusals[0]}"
        )
