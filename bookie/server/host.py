"""A bookie as a function of its seams: both the process and the simulator run it.

    metadata --- layout, cookie ----.
    directories -- cookie, log -----+--> store --> server <--- connections
                                    '--> registration

The order at the start: read the layout of the cluster, open the port (a new bookie is named after
it), validate the cookies, read the log, compare and count the starts (`start_count`), serve, read
the admin state, register.  The end has the reverse order.  A bookie that dies without an orderly
end loses no entry that it has acknowledged; with `sync = "deferred"` the next start knows which
ledgers may have lost entries (`data_integrity`).

`run_bookie` raises one of `START_ERRORS`, with a sentence for the operator, if directories, port
and metadata do not fit together, or if the disk fails or has no room for what a start must write;
the stored data are then as before.  The error may be inside an exception group.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeVar

import trio

from daybook.bookie.errors import MalformedRecordError, RegistryError
from daybook.bookie.ledger.admin_states import AdminStates
from daybook.bookie.ledger.client import open_ledger_client
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.instance import read_binding
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo, bookie_info
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.cookie_validation import Identity, StartError, validate_cookies
from daybook.bookie.server.damage_reporter import DamageReporter
from daybook.bookie.server.data_integrity import DataIntegrityCheck
from daybook.bookie.server.garbage_collector import (
    GarbageCollector,
    Housekeeping,
    read_ledger_facts,
)
from daybook.bookie.server.permit_record import PermitRecord
from daybook.bookie.server.port import BookieServer
from daybook.bookie.server.read_only_state import ReadOnlyState
from daybook.bookie.server.registration import Registration, replace_mark
from daybook.bookie.server.security import SecurityOfBookie, open_security
from daybook.bookie.server.start_count import StartCounter
from daybook.bookie.server.v3 import DiskSpace
from daybook.bookie.storage.directories import StorageLayoutError
from daybook.bookie.storage.disk import DirectoryInUseError, Disk
from daybook.bookie.storage.index import OpenIndex
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.rebuild import IndexRebuild
from daybook.bookie.storage.records import UnsupportedVersionError
from daybook.bookie.storage.status import StoreError
from daybook.bookie.storage.store import LedgerStore, open_store
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import WallClock
from daybook.wire.errors import WireError
from daybook.wire.logging import Log, silent_log
from daybook.wire.messages.bookie_v3 import decode_response, encode_bookie_info
from daybook.wire.metadata.store import (
    MetadataError,
    MetadataStore,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from daybook.wire.outbox import Flusher
from daybook.wire.probe import PortProbe
from daybook.wire.transport import Listener, Network

T = TypeVar("T")
_METADATA_RETRY_S = 0.5
START_ERRORS = (
    StartError,
    DirectoryInUseError,
    StorageLayoutError,
    UnsupportedVersionError,
    StoreError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class RegistrationStatistics:
    registered: bool
    readonly: bool
    sessions_lost: int


@dataclass(frozen=True, slots=True)
class RunningBookie:
    """A bookie that serves."""

    bookie_id: str
    host: str
    port: int
    server: BookieServer
    flusher: Flusher
    store: LedgerStore
    registration: Registration
    read_only_state: ReadOnlyState
    garbage_collector: GarbageCollector
    housekeeping: Housekeeping
    damage_reporter: DamageReporter
    data_integrity: DataIntegrityCheck
    probe: PortProbe  # connects to the bookie's own port
    start_counter: StartCounter
    security: SecurityOfBookie
    permits: PermitRecord

    def why_unhealthy(self) -> str:
        """Return what is wrong, in words, or "" while all is well."""
        statistics = self.store.statistics()
        reasons: list[str] = []
        if not self.registration.registered:
            reasons.append("not registered: no session with the metadata store")
        if statistics.limbo and (statistics.losses or not self.store.rebuilding):
            losses = statistics.losses or ["it is not known yet of which ledgers"]
            reasons.append("records were lost: " + "; ".join(losses))
        reasons += [str(rebuild) for rebuild in self.store.rebuilding]
        if self.start_counter.problem:
            reasons.append(self.start_counter.problem)
        if statistics.failure:
            reasons.append(f"the storage has failed: {statistics.failure}")
        elif not (statistics.writable or statistics.read_only):
            why = ": too little room on its disk" if self.store.out_of_space else ""
            reasons.append(f"takes no new entries{why}")
        return "; ".join(reasons)

    def sources(self) -> dict[str, Callable[[], object]]:
        """Return the functions whose results are the metrics, by the name of their group."""

        def registration() -> RegistrationStatistics:
            state = self.registration
            return RegistrationStatistics(state.registered, state.readonly, state.sessions_lost)

        return {
            "store": self.store.statistics,
            "server": self.server.statistics,
            "registration": registration,
            "housekeeping": self.garbage_collector.statistics,
            "limbo": self.data_integrity.statistics,
        }


async def run_bookie(
    config: BookieConfig,
    *,
    network: Network,
    metadata: MetadataStore,
    disk: Disk,
    index: OpenIndex,
    clock: WallClock,
    rng: Random,
    log: Log | None = None,
    store_limits: StoreLimits | None = None,
    security: SecurityOfBookie | None = None,
    task_status: trio.TaskStatus[RunningBookie] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a bookie until cancelled.  `security` belongs to the settings (`open_security`)."""
    log = log or silent_log()
    security = security or open_security(config, clock=clock, log=log, rng=rng)
    paths = LedgerPaths(config.ledgers_root)
    instance_id = await _once_available(log, lambda: _ensure_layout(metadata, paths, rng))
    await _warn_if_topics_elsewhere(log, metadata, instance_id, config.ledgers_root)
    listener = await _listen(network, config)
    try:
        repair = config.cookie_repair == "auto"
        identity = await _once_available(
            log,
            lambda: _validate_cookies(
                config, metadata, disk, instance_id, listener.port, repair=repair
            ),
        )
        permits = PermitRecord(disk, config.directories[0], config.authentication)
        await permits.check(new=identity.new, force=config.authentication_force)
        limits = config.store_limits
        if store_limits is not None:
            limits = replace(store_limits, ack_early=limits.ack_early)
        seams = _Seams(network, metadata, paths, disk, clock, rng, log, security, permits)
        await _open_and_serve(config, seams, identity, listener, index, limits, task_status)
    finally:
        listener.close()


async def _open_and_serve(
    config: BookieConfig,
    seams: "_Seams",
    identity: Identity,
    listener: Listener,
    index: OpenIndex,
    limits: StoreLimits,
    task_status: trio.TaskStatus[RunningBookie],
) -> None:
    """Open the store of a bookie whose cookies are valid, and serve until cancelled."""
    metadata, paths, disk, log = seams.metadata, seams.paths, seams.disk, seams.log
    admin_states = AdminStates(metadata, paths)
    in_doubt = await _once_available(log, lambda: _in_doubt(identity, admin_states))
    if in_doubt:
        # The claim comes before the store writes the doubt into the directories.  Otherwise a
        # start that ends there would leave data without a cookie, which no start accepts.
        await identity.claim_directories()
    process = f"{seams.rng.getrandbits(128):032x}"
    start_counter = StartCounter(
        metadata,
        paths,
        disk,
        identity.bookie_id,
        config.directories,
        process=process,
        interval_s=config.position_interval_s,
        log=log,
    )
    async with open_store(
        disk=disk,
        directories=config.directories,
        index=index,
        clock=seams.clock,
        limits=limits,
        ask=partial(read_ledger_facts, metadata, paths),
        in_doubt=in_doubt,
        rebuild=partial(_log_rebuild, log),
        is_behind=lambda ends: _once_available(log, lambda: start_counter.is_behind(ends)),
    ) as store:
        # The open store has made a doubt durable: only now may cookies and numbers be written.
        await _once_available(log, identity.write_cookies)
        await start_counter.count_start(store.log_ends())
        marks = await replace_mark(disk, config.directories[0], process)
        await seams.permits.begin()
        read_only_state = ReadOnlyState(disk, config.directories, store)
        await read_only_state.load()
        running = _assemble(
            config, identity, listener, store, read_only_state, marks, start_counter, seams
        )
        await _serve(running, disk, listener, admin_states, task_status)


def _log_rebuild(log: Log, rebuild: IndexRebuild) -> None:
    directory, why = rebuild.directory, rebuild.why
    match rebuild.state:
        case "damaged":
            log.warning(
                "an index is damaged; the bookie rebuilds it from its log, and until then rejects"
                " new entries and answers 'unknown' for entries that it cannot find",
                directory=directory,
                why=why,
            )
        case "failed":
            # Only a failed log or a full disk leads here; both are reported elsewhere, too.
            log.warning("the index was not rebuilt", directory=directory, why=rebuild.trouble)
        case "rebuilt":
            log.warning(
                "the index is made again; every ledger is compared with its other copies now",
                directory=directory,
            )
        case _:
            done, total = rebuild.done_bytes, rebuild.total_bytes
            log.warning("the index is being rebuilt", directory=directory, bytes=done, of=total)


async def repair_cookie(
    config: BookieConfig,
    *,
    metadata: MetadataStore,
    disk: Disk,
    index: OpenIndex,
    clock: WallClock,
    rng: Random,
    log: Log,
) -> str:
    """Write the cookies of a stopped bookie into its directories again; return its id.

    From then on the bookie starts, in doubt of all its ledgers.  Raise one of `START_ERRORS`, also
    while a bookie is registered under that id: it uses other directories than these.
    """
    paths = LedgerPaths(config.ledgers_root)
    instance_id = await _once_available(log, lambda: _ensure_layout(metadata, paths, rng))
    identity = await _once_available(
        log,
        lambda: _validate_cookies(config, metadata, disk, instance_id, config.port, repair=True),
    )
    if identity.new or not identity.lacking:
        raise StartError(f"nothing to repair: bookie {identity.bookie_id} can start as it is")
    info = await _once_available(log, lambda: bookie_info(metadata, paths, identity.bookie_id))
    if info is not None:
        raise StartError(
            f"bookie {identity.bookie_id} is announced at {info.host}:{info.port}: if it is running"
            f" there, is {', '.join(identity.lacking)} the right directory?  Stop it first; if it"
            " was killed, try again when its session has ended, in some seconds"
        )
    await identity.claim_directories()
    async with open_store(
        disk=disk,
        directories=config.directories,
        index=index,
        clock=clock,
        limits=config.store_limits,
        in_doubt=True,
    ):
        await _once_available(log, identity.write_cookies)
    return identity.bookie_id


async def _validate_cookies(
    config: BookieConfig,
    metadata: MetadataStore,
    disk: Disk,
    instance_id: str,
    port: int,
    *,
    repair: bool,
) -> Identity:
    """Compare the cookies of the directories with the settings and the metadata."""
    return await validate_cookies(
        disk,
        config.directories,
        metadata,
        LedgerPaths(config.ledgers_root),
        instance_id=instance_id,
        wanted_id=config.bookie_id,
        default_id=f"{config.public_host}:{port}",
        repair=repair,
    )


async def _in_doubt(identity: Identity, admin_states: AdminStates) -> bool:
    """Return True if records may be lost.  A new bookie with an admin state has run before."""
    if not identity.new:
        return identity.in_doubt
    try:
        return await admin_states.read(BookieId(identity.bookie_id)) is not None
    except MalformedRecordError:
        return True


@dataclass(frozen=True, slots=True)
class _Seams:
    """The seams of a bookie to the world outside."""

    network: Network
    metadata: MetadataStore
    paths: LedgerPaths
    disk: Disk
    clock: WallClock
    rng: Random
    log: Log
    security: SecurityOfBookie
    permits: PermitRecord


def _assemble(
    config: BookieConfig,
    identity: Identity,
    listener: Listener,
    store: LedgerStore,
    read_only_state: ReadOnlyState,
    marks: tuple[str, str],
    start_counter: StartCounter,
    seams: _Seams,
) -> RunningBookie:
    """Return the parts of the bookie; none of them runs yet."""
    metadata, paths, log = seams.metadata, seams.paths, seams.log
    registration = _registration(config, identity, listener.port, store, marks, seams)
    store.add_writable_listener(registration.look_again)
    garbage_collector = GarbageCollector(store, metadata, paths, identity.cookie, log)
    housekeeping = Housekeeping(
        store,
        garbage_collector,
        reclaim_interval_s=config.reclaim_interval_s,
        scrub_interval_s=config.scrub_interval_s,
        rng=seams.rng,
        log=log,
    )
    damage_reporter = DamageReporter(
        store, metadata, paths, identity.bookie_id, clock=seams.clock, rng=seams.rng, log=log
    )
    flusher = Flusher()
    reception = seams.security.reception(
        config, rng=seams.rng, log=log, came_without=seams.permits.came_without
    )
    probe = PortProbe(listener.host, listener.port, partial(encode_bookie_info, 1), why_not_served)
    server = BookieServer(
        store,
        limits=config.limits,
        clock=seams.clock,
        flusher=flusher,
        log=log,
        disk_space=lambda: _disk_space(seams.disk, config.directories, store),
        reserved=probe.reserved,
        reception=reception,
    )
    return RunningBookie(
        bookie_id=identity.bookie_id,
        host=config.public_host,
        port=listener.port,
        server=server,
        flusher=flusher,
        store=store,
        registration=registration,
        read_only_state=read_only_state,
        garbage_collector=garbage_collector,
        housekeeping=housekeeping,
        damage_reporter=damage_reporter,
        data_integrity=_data_integrity_check(config, identity, store, flusher, seams),
        probe=probe,
        start_counter=start_counter,
        security=seams.security,
        permits=seams.permits,
    )


def _registration(
    config: BookieConfig,
    identity: Identity,
    port: int,
    store: LedgerStore,
    marks: tuple[str, str],
    seams: _Seams,
) -> Registration:
    # Port 0 is chosen too late to be registered: HTTP is served after the bookie is.
    http_port, https_port = (
        each if each > 0 else None for each in (config.http_port, config.https_port)
    )
    info = BookieInfo(
        identity.bookie_id,
        config.public_host,
        port,
        config.properties,
        http_port,
        https_port,
        tls=config.tls != "off",
    )
    metadata, paths, log = seams.metadata, seams.paths, seams.log
    return Registration(
        metadata, paths, info, marks=marks, writable=lambda: store.writable, log=log
    )


def _data_integrity_check(
    config: BookieConfig, identity: Identity, store: LedgerStore, flusher: Flusher, seams: _Seams
) -> DataIntegrityCheck:
    open_client = partial(
        open_ledger_client,
        store=seams.metadata,
        network=seams.network,
        rng=seams.rng,
        clock=seams.clock,
        arenas=ArenaPool(),
        flusher=flusher,
        root=config.ledgers_root,
        security=seams.security.client,
    )
    return DataIntegrityCheck(
        store,
        seams.metadata,
        seams.paths,
        identity.cookie,
        open_client=open_client,
        bytes_per_s=config.replication_bytes_per_s,
        clock=seams.clock,
        rng=seams.rng,
        log=seams.log,
    )


async def _serve(
    bookie: RunningBookie,
    disk: Disk,
    listener: Listener,
    admin_states: AdminStates,
    task_status: trio.TaskStatus[RunningBookie],
) -> None:
    """Serve until cancelled; the bookie registers when it knows its admin state."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bookie.flusher.run)
        nursery.start_soon(disk.run)
        nursery.start_soon(bookie.server.serve, listener)
        bookie_id = BookieId(bookie.bookie_id)
        # Before the registration: no client may see a bookie as writable that must be read-only.
        await nursery.start(admin_states.follow, bookie_id, bookie.store.set_read_only)
        try:
            await nursery.start(bookie.registration.run)
            nursery.start_soon(bookie.housekeeping.run)
            nursery.start_soon(bookie.damage_reporter.run)
            nursery.start_soon(bookie.data_integrity.run)
            nursery.start_soon(bookie.start_counter.run, bookie.store)
            nursery.start_soon(bookie.permits.run, bookie.server.unproven)
            nursery.start_soon(bookie.security.run)
            task_status.started(bookie)
            await trio.sleep_forever()
        finally:
            await bookie.registration.leave()


async def _ensure_layout(metadata: MetadataStore, paths: LedgerPaths, rng: Random) -> str:
    try:
        return await ensure_layout(metadata, paths, rng)
    except RegistryError as error:
        raise StartError(str(error)) from error


async def _warn_if_topics_elsewhere(
    log: Log, metadata: MetadataStore, instance_id: str, root: str
) -> None:
    """Warn if the topics use another cluster of ledgers: that is allowed, and may be a mistake."""
    with suppress(MetadataError, MalformedRecordError):
        bound = await read_binding(metadata)
        if bound is not None and bound.instance_id != instance_id:
            log.warning(
                "no topics are kept in these ledgers: brokers of this ZooKeeper use another"
                " instance. If that is not meant, set ledgers_root as the brokers have it"
                " (`daybook cluster show`)",
                root=root,
                instance=instance_id,
                topics_in=bound.instance_id,
            )


async def _listen(network: Network, config: BookieConfig) -> Listener:
    try:
        return await network.listen(config.host, config.port)
    except OSError as error:
        raise StartError(str(error)) from error


async def _once_available(log: Log, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call that can be repeated, once the metadata store answers."""
    while True:
        try:
            return await call()
        except (StoreUnavailableError, OutcomeUnknownError) as error:
            log.warning("waiting for the metadata store", why=str(error))
            await trio.sleep(_METADATA_RETRY_S)


def why_not_served(frame: bytes) -> str:
    """Return "" if `frame` is an answer of the protocol, even one that reports a failed disk."""
    try:
        decode_response(frame)
    except WireError as error:
        return f"the answer is malformed: {error}"
    return ""


async def _disk_space(disk: Disk, directories: tuple[str, ...], store: LedgerStore) -> DiskSpace:
    """Return the free bytes, and as the total the sum of these and the bytes of the logs."""
    free = 0
    for directory in directories:
        free += await disk.free_bytes(directory)
    return DiskSpace(total_bytes=free + store.statistics().log_bytes, free_bytes=free)
