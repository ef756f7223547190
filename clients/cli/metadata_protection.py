"""Protect the records of a cluster in ZooKeeper by access control lists, or open them again.

    open --> protecting --> protected --> required        `wire.metadata.protection` has the steps
     ^          |               |            |
     '------ opening <----------'<-----------'            --undo

Each step waits for all registered processes.  A process is registered by an ephemeral record of a
broker, a bookie or an auto-recovery worker.  It counts if a process of Daybook has announced itself
in the same session (`wire.metadata.announce`): with an identity of the cluster, and with the
generation of the protection that is in force.  Any other process would lose its rights, or create
records without lists; so nothing changes while there is one, unless the operator names it.

The lists of existing records are replaced from the top down, and again until nothing is left to
do.  Replacing a list twice changes nothing, so a run that was interrupted is repeated from the
beginning.  Nothing here reads a setting of a process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import trio

from daybook.bookie.registry.paths import READONLY, LedgerPaths
from daybook.wire.metadata.acl import OPEN_ACL, Acl, without_passwords
from daybook.wire.metadata.announce import Announced, announced
from daybook.wire.metadata.protection import PATH, PROCESSES, Protection, Step
from daybook.wire.metadata.store import (
    ANY,
    AccessDeniedError,
    Create,
    MetadataStore,
    NoRecordError,
    Operation,
    RecordExistsError,
    Set,
    VersionConflictError,
)

_BROKERS = "/loadbalance/brokers"
_POLL_S = 0.1
_TRANSIENT_S = 3.0  # a process that starts announces itself, and then registers
_AT_ONCE = 16
_PASSES_MAX = 20
_FOREIGN_SHOWN = 5
# The records of Daybook, Pulsar and BookKeeper at the root of a ZooKeeper that others may use, too.
OURS = frozenset(
    (
        *("admin", "bookies", "counters", "daybook", "ledgers", "loadbalance", "managed-ledgers"),
        *("namespace", "pulsar", "resource-group", "schemas", "stream"),
    )
)
_ZOOKEEPERS_OWN = "zookeeper"


class ProtectionRefusedError(Exception):
    """The step is not taken; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A process that is registered in the cluster."""

    kind: str
    name: str
    session: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The identities that the operator wants in the lists."""

    identities: tuple[str, ...]
    admins: tuple[str, ...]
    ledgers_roots: tuple[str, ...]
    known: frozenset[str] = frozenset()  # names of registered processes that announce nothing


@dataclass(slots=True)
class Count:
    """The result of one pass over the records."""

    seen: int = 0
    changed: int = 0  # or, in a dry run, to be changed
    denied: list[str] = field(default_factory=list[str])  # records that belong to others


# -- who is there


async def registered(store: MetadataStore, ledgers_roots: Sequence[str]) -> list[Registered]:
    places = [(_BROKERS, "broker")]
    for root in ledgers_roots:
        paths = LedgerPaths(root)
        places += [
            (paths.available, "bookie"),
            (paths.readonly, "bookie"),
            (f"{paths.underreplication}/auditorelection", "auto-recovery worker"),
        ]
    found: list[Registered] = []
    for place, kind in places:
        for name in await store.get_newest_children(place) or []:
            record = None if name == READONLY else await store.get(f"{place}/{name}")
            if record is not None and record.stat.owner:
                found.append(Registered(kind, name, record.stat.owner))
    return found


async def obstacles(store: MetadataStore, wanted: Wanted, generation: int) -> list[str]:
    """Return why registered processes would be locked out, or would create open records."""
    there = {each.session: each for each in await announced(store)}
    own = _obstacle_of_command([*there.values()], wanted)
    if own:
        return [own]
    result: list[str] = []
    sessions: set[int] = set()
    processes = await registered(store, wanted.ledgers_roots)
    for process in processes:
        said = there.get(process.session)
        if said is None and process.name not in wanted.known:
            result.append(
                f"the {process} announces nothing: it is of an older release, or not of Daybook;"
                " update it, stop it, or name it with --known if it has an identity of its own"
            )
        elif said is not None and process.session not in sessions:
            sessions.add(process.session)
            result += _obstacle(said, wanted, generation)
    for session in sorted({*there} - sessions):  # They are about to register, perhaps.
        result += _obstacle(there[session], wanted, generation)
    if result:  # A name of --known that is not true may be the reason.
        result += _unknown(wanted, processes)
    return result


def _obstacle_of_command(there: list[Announced], wanted: Wanted) -> str:
    """Return what to say if the identity of the command is none of those that processes show."""
    shown = {identity for each in there for identity in each.identities}
    if not shown or shown & {*wanted.identities, *wanted.admins}:
        return ""
    ours = without_passwords(wanted.identities[0])
    theirs = {without_passwords(each) for each in shown}
    what = "with another password" if ours in theirs else f"but {', '.join(sorted(theirs))}"
    return (
        f"no process shows {ours} as this command does, {what}: give the command the user and"
        " the password of the processes (--zookeeper-user, --zookeeper-password-file); if theirs"
        " is to become another one, name both, with --also"
    )


def _unknown(wanted: Wanted, processes: Sequence[Registered]) -> list[str]:
    names = {process.name for process in processes}
    return [
        f"--known {name} names no registered process"
        f" (there are: {', '.join(sorted(names)) or 'none'})"
        for name in sorted(wanted.known - names)
    ]


def _obstacle(said: Announced, wanted: Wanted, generation: int) -> list[str]:
    process = f"{said.process.kind} {said.process.name}"
    if not said.identities:
        return [
            f"the {process} shows no identity: set zookeeper_user and zookeeper_password_file, and"
            " restart it"
        ]
    if not set(said.identities) & {*wanted.identities, *wanted.admins}:
        shown = ", ".join(map(without_passwords, said.identities))
        return [
            f"the {process} shows the identity {shown}, which would have no rights: give it the"
            " user and the password of the cluster, or add its identity with --also"
        ]
    if said.generation < generation:
        return [f"the {process} has not heard of the change yet"]
    return []


async def wait_without_obstacles(
    store: MetadataStore, wanted: Wanted, generation: int, timeout_s: float
) -> None:
    """Return when there is no obstacle.  Raise ProtectionRefusedError, which names them."""
    found: list[str] = []
    with trio.move_on_after(timeout_s):
        while True:
            found = await obstacles(store, wanted, generation)
            if not found:
                return
            await trio.sleep(_POLL_S)
    reasons = found or ["the processes could not be listed in time"]
    raise ProtectionRefusedError("; ".join(reasons))


# -- the steps


async def protect(
    store: MetadataStore,
    wanted: Wanted,
    *,
    whole_tree: bool,
    timeout_s: float,
    report: Callable[[str], None],
) -> Protection:
    """Give all records lists, and let all processes create new ones with lists.

    Raise ProtectionRefusedError if a registered process is not ready; records that have lists by
    then keep them, and the next run continues.
    """
    await wait_without_obstacles(store, wanted, 0, _TRANSIENT_S)
    known = await store.protection()
    new = replace(
        known,
        step=Step.PROTECTING,
        identities=wanted.identities,
        admins=wanted.admins,
        ledgers_roots=wanted.ledgers_roots,
    )
    if new != replace(known, step=Step.PROTECTING) or not known.closed:
        new = replace(new, generation=known.generation + 1)
        await _write(store, known, new)
    report("All processes are told to create records with lists.")
    await wait_without_obstacles(store, wanted, new.generation, timeout_s)
    count = await _replace_all(store, new.acl, whole_tree=whole_tree, report=report)
    if count.denied:
        raise ProtectionRefusedError(denied_records(count))
    if known.step is not Step.REQUIRED or new.generation != known.generation:
        new = replace(new, step=Step.PROTECTED)
        await _write(store, await store.protection(), new)
    return new


async def require(store: MetadataStore, wanted: Wanted, *, whole_tree: bool) -> None:
    """Demand an identity of every program.  Raise ProtectionRefusedError."""
    known = await store.protection()
    if known.step is Step.REQUIRED:
        return
    if known.step is not Step.PROTECTED:
        raise ProtectionRefusedError(
            f"the step is {known.step.value!r}: run `daybook cluster secure-metadata` first"
        )
    await wait_without_obstacles(store, wanted, known.generation, _TRANSIENT_S)
    count = await count_changes(store, known.acl, whole_tree=whole_tree)
    if count.denied:
        raise ProtectionRefusedError(denied_records(count))
    if count.changed:
        raise ProtectionRefusedError(
            f"{count.changed} records have other lists: run `daybook cluster secure-metadata` again"
        )
    await _write(store, known, replace(known, step=Step.REQUIRED))


async def undo(
    store: MetadataStore,
    *,
    whole_tree: bool,
    timeout_s: float,
    report: Callable[[str], None],
) -> Protection:
    """Go back one step: from `required` to `protected`, from any other one to `open`."""
    known = await store.protection()
    if known.step is Step.OPEN:
        return known
    if known.step is Step.REQUIRED:
        new = replace(known, step=Step.PROTECTED)
        await _write(store, known, new)
        return new
    new = known
    if known.step is not Step.OPENING:
        new = replace(known, step=Step.OPENING, generation=known.generation + 1)
        await _write(store, known, new)
    report("All processes are told to create open records.")
    await _wait_heard(store, new.generation, timeout_s)
    count = await _replace_all(store, lambda _: OPEN_ACL, whole_tree=whole_tree, report=report)
    if count.denied:
        raise ProtectionRefusedError(denied_records(count))
    opened = Protection(new.generation, Step.OPEN, new.ledgers_roots)
    await _write(store, new, opened)
    await store.set_acl(PATH, OPEN_ACL)
    for name in await store.get_children(PATH) or []:
        await store.delete(f"{PATH}/{name}", ANY)
    return opened


async def _wait_heard(store: MetadataStore, generation: int, timeout_s: float) -> None:
    """Wait until every process that announces itself has heard of a generation."""
    late: list[Announced] = []
    with trio.move_on_after(timeout_s):
        while True:
            late = [each for each in await announced(store) if each.generation < generation]
            if not late:
                return
            await trio.sleep(_POLL_S)
    names = ", ".join(f"{each.process.kind} {each.process.name}" for each in late)
    raise ProtectionRefusedError(f"these processes have not heard of the change yet: {names}")


async def _write(store: MetadataStore, known: Protection, new: Protection) -> None:
    """Replace the protection.  Raise ProtectionRefusedError if another one does so, too."""
    record = await store.get_newest(PATH)
    operations: list[Operation] = []
    readable = new.readable if new.everybody else OPEN_ACL
    if record is None:
        await _ensure(store, "/daybook")
        operations.append(Create(PATH, new.encode(), acl=readable))
    else:
        if new.everybody:
            await store.set_acl(PATH, readable)
        operations.append(Set(PATH, new.encode(), record.stat.version))
    if new.everybody and await store.get_newest(new.identities_path) is None:
        # This record comes first in the tree's order, and with the other one in time.
        operations.append(Create(new.identities_path, new.encode_identities(), acl=new.private))
    try:
        await store.multi(operations)
    except (RecordExistsError, VersionConflictError) as error:
        raise ProtectionRefusedError("another process changes the protection, too") from error
    while (await store.protection()).encode() != new.encode():  # noqa: ASYNC110  a store
        await trio.sleep(_POLL_S)
    old = known.identities_path
    if old != new.identities_path and await store.get_newest(old) is not None:
        await store.delete(old, ANY)


async def _ensure(store: MetadataStore, path: str) -> None:
    if await store.get_newest(path) is None:
        try:
            await store.create(path, b"")
        except RecordExistsError:
            return


# -- all records


async def tops(store: MetadataStore, roots: Sequence[str], *, whole_tree: bool) -> list[str]:
    """Return the records at the root that are the cluster's."""
    names = await store.get_newest_children("/") or []
    ours = OURS | {root.split("/")[1] for root in roots}
    return [name for name in names if name != _ZOOKEEPERS_OWN and (whole_tree or name in ours)]


async def foreign_tops(store: MetadataStore, roots: Sequence[str]) -> list[str]:
    """Return the records at the root that are not the cluster's."""
    names = await store.get_newest_children("/") or []
    ours = OURS | {root.split("/")[1] for root in roots} | {_ZOOKEEPERS_OWN}
    return [name for name in names if name not in ours]


async def _root_is_ours(store: MetadataStore, known: Protection) -> bool:
    """Return True if the root may get a list: no record there is of others, and no list is."""
    if await foreign_tops(store, known.ledgers_roots):
        return False
    try:
        acl = await store.get_acl("/") or OPEN_ACL
    except AccessDeniedError:
        return False
    return acl == OPEN_ACL or bool({each.identity for each in acl} & set(known.everybody))


async def count_changes(
    store: MetadataStore, wanted: Callable[[str], Acl], *, whole_tree: bool
) -> Count:
    """Look at all records, and change nothing."""
    return await _pass(store, wanted, whole_tree=whole_tree, dry=True)


async def _replace_all(
    store: MetadataStore,
    wanted: Callable[[str], Acl],
    *,
    whole_tree: bool,
    report: Callable[[str], None],
) -> Count:
    """Replace the lists until nothing is left to do."""
    for _ in range(_PASSES_MAX):
        count = await _pass(store, wanted, whole_tree=whole_tree, dry=False)
        report(f"{count.changed} of {count.seen} records got another list.")
        if not count.changed:
            return count
    raise ProtectionRefusedError(
        "someone creates records with other lists all the time: find out who that is, and run the"
        " command again"
    )


async def _pass(
    store: MetadataStore, wanted: Callable[[str], Acl], *, whole_tree: bool, dry: bool
) -> Count:
    known = await store.protection()
    roots, count = known.ledgers_roots, Count()
    if whole_tree or await _root_is_ours(store, known):
        await _visit(store, "/", wanted("/"), count, dry=dry)
    level = [f"/{name}" for name in await tops(store, roots, whole_tree=whole_tree)]
    # A level at a time: a list that protects its children comes before theirs.
    while level:
        below: list[str] = []
        for each in range(0, len(level), _AT_ONCE):
            async with trio.open_nursery() as nursery:
                for path in level[each : each + _AT_ONCE]:
                    nursery.start_soon(_visit_with_children, store, path, wanted, count, below, dry)
        level = below
    return count


async def _visit_with_children(
    store: MetadataStore,
    path: str,
    wanted: Callable[[str], Acl],
    count: Count,
    below: list[str],
    dry: bool,
) -> None:
    await _visit(store, path, wanted(path), count, dry=dry)
    if path == PROCESSES:
        return  # The lists of announcements are proofs.
    try:
        names = await store.get_children(path) or []
    except AccessDeniedError:
        return  # `_visit` has noted that.
    below += [f"{path}/{name}" for name in names]


async def _visit(store: MetadataStore, path: str, wanted: Acl, count: Count, *, dry: bool) -> None:
    try:
        acl = await store.get_acl(path)
        if acl is None:
            return
        count.seen += 1
        if set(acl) == set(wanted):
            return
        if not dry:
            await store.set_acl(path, wanted)
        count.changed += 1
    except AccessDeniedError:
        count.denied.append(path)
    except NoRecordError:
        return  # It was deleted meanwhile.


def denied_records(count: Count) -> str:
    """Return a sentence about the records that the command may not change."""
    shown = ", ".join(count.denied[:_FOREIGN_SHOWN])
    more = len(count.denied) - _FOREIGN_SHOWN
    return (
        f"{len(count.denied)} records have lists that give this command no right, such as {shown}"
        f"{f' and {more} more' if more > 0 else ''}: open them with the identity of their owner, or"
        " by superDigest (docs/security.md), and run the command again"
    )


async def describe(store: MetadataStore) -> list[dict[str, str]]:
    """Return a row for each process that announces itself."""
    return [
        {
            "kind": each.process.kind,
            "process": each.process.name,
            "identity": ", ".join(map(without_passwords, each.identities)) or "none",
            "generation": str(each.generation),
        }
        for each in await announced(store)
    ]
