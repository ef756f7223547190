"""`daybook cluster secure-metadata`: the steps, who is waited for, and the way back."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from daybook.clients.cli import metadata_protection
from daybook.clients.cli.metadata_protection import (
    ProtectionRefusedError,
    Wanted,
    count_changes,
    protect,
    require,
    undo,
)
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.acl import ALL, OPEN_ACL, OWN, Grant, digest_identity
from daybook.wire.metadata.announce import Announcer, Process
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from daybook.wire.metadata.protection import PATH, Protection, Step
from daybook.wire.metadata.store import ANY, AccessDeniedError, Create, MetadataStore
from tests.clients.cli.conftest import Daybook

OURS, ADMIN, OTHER = (digest_identity(user, "p") for user in ("daybook", "admin", "pulsar"))
WANTED = Wanted((OURS,), (ADMIN,), ("/ledgers",))
PASSWORD = "/ledgers/00/0000/L0001"
RECORDS = (
    *("/admin/policies/public/default", "/managed-ledgers/public/default/persistent/t"),
    *("/ledgers/cookies/b1", "/ledgers/available/readonly", PASSWORD),
    *("/loadbalance/brokers", "/namespace/public/default", "/counters/producer-name"),
)


def silent(_: str) -> None:
    pass


class Cluster:
    """Some records, the session of the command, and that of a broker."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.memory = MemoryStore(SystemClock())
        self.cli = self.memory.session("cli", identity=OURS)
        self.stranger = self.memory.session("stranger")
        self._nursery = nursery

    async def fill(self) -> None:
        for path in RECORDS:
            await self.cli.create(path, b"x", make_parents=True)

    async def start(
        self, name: str, *, identity: str = OURS, announce: bool = True, follow: bool = True
    ) -> MemorySession:
        """Start a broker, of an older release unless it announces itself."""
        session = self.memory.session(name, identity=identity)
        if announce:
            announcer = Announcer(session, Process("broker", name), bool(identity))
            await announcer.announce()
            if follow:
                self._nursery.start_soon(announcer.run)
        await session.create(f"/loadbalance/brokers/{name}", b"", ephemeral=True, make_parents=True)
        return session

    async def protect(self, wanted: Wanted = WANTED, timeout_s: float = 5.0) -> Protection:
        return await protect(self.cli, wanted, whole_tree=False, timeout_s=timeout_s, report=silent)

    async def undo(self) -> Protection:
        return await undo(self.cli, whole_tree=False, timeout_s=5.0, report=silent)

    async def lists(self, session: MetadataStore | None = None) -> dict[str, object]:
        session = session or self.cli
        return {path: await session.get_acl(path) for path in RECORDS}


@pytest.fixture
async def cluster(autojump_clock: object) -> AsyncGenerator[Cluster]:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery)
        await cluster.fill()
        yield cluster
        nursery.cancel_scope.cancel()


async def test_a_stranger_may_read_all_but_passwords_and_change_nothing(cluster: Cluster) -> None:
    await cluster.start("b1")
    after = await cluster.protect()
    assert (after.step, after.generation) == (Step.PROTECTED, 1)
    stranger = cluster.stranger
    for path in (*RECORDS, "/", "/loadbalance/brokers/b1", PATH):
        for forbidden in (
            stranger.set(path, b"", ANY),
            stranger.create(f"{path.rstrip('/')}/new", b""),
            stranger.set_acl(path, OPEN_ACL),
            *([] if path == "/" else [stranger.delete(path, ANY)]),
        ):
            with pytest.raises(AccessDeniedError):
                await forbidden
        if path != PASSWORD:
            assert await stranger.get(path) is not None
    with pytest.raises(AccessDeniedError):
        await stranger.get(PASSWORD)
    for identity in (OURS, ADMIN):
        session = cluster.memory.session(identity=identity)
        await session.set(PASSWORD, b"y", ANY)


async def test_new_records_of_all_processes_get_lists(cluster: Cluster) -> None:
    broker = await cluster.start("b1")
    after = await cluster.protect()
    await broker.multi([Create("/namespace/public/default/0x0_0x1", b"", ephemeral=True)])
    await broker.create("/ledgers/00/0000/L0002", b"")
    assert (await count_changes(cluster.cli, after.acl, whole_tree=False)).changed == 0
    with pytest.raises(AccessDeniedError):
        await cluster.stranger.get("/ledgers/00/0000/L0002")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"announce": False}, "broker b1 announces nothing: it is of an older release"),
        ({"identity": ""}, "broker b1 shows no identity: set zookeeper_user"),
        ({"identity": OTHER}, "broker b1 shows the identity digest:pulsar, which would have no"),
    ],
    ids=["old", "nobody", "other"],
)
async def test_a_process_that_is_not_ready_stops_it(
    cluster: Cluster, arguments: dict[str, object], why: str
) -> None:
    await cluster.start("b0")
    await cluster.start("b1", **arguments)  # type: ignore[arg-type]
    before = await cluster.lists()
    with pytest.raises(ProtectionRefusedError, match=why):
        await cluster.protect()
    assert await cluster.lists() == before
    assert await cluster.cli.protection() == Protection()


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("wrong", "no process shows digest:daybook as this command does, with another password"),
        ("p", "no process shows digest:admin as this command does, but digest:daybook"),
    ],
)
async def test_a_wrong_identity_of_the_command_accuses_no_process(
    cluster: Cluster, password: str, why: str
) -> None:
    await cluster.start("b1")
    await cluster.start("b2")
    own = digest_identity("daybook" if password == "wrong" else "admin", password)
    with pytest.raises(ProtectionRefusedError, match=why) as error:
        await cluster.protect(Wanted((own,), (OTHER,), ("/ledgers",)))
    assert "b1" not in str(error.value)
    assert "b2" not in str(error.value)


async def test_a_known_name_that_is_wrong_is_told_beside_the_obstacle(cluster: Cluster) -> None:
    await cluster.start("p1", identity=OTHER, announce=False)
    wanted = Wanted((OURS, OTHER), (ADMIN,), ("/ledgers",), frozenset({"p2"}))
    with pytest.raises(ProtectionRefusedError) as error:
        await cluster.protect(wanted)
    assert "--known p2 names no registered process (there are: p1)" in str(error.value)
    await cluster.protect(replace(wanted, known=frozenset({"p1", "p2"})))


async def test_a_bookie_and_a_worker_are_waited_for_too(cluster: Cluster) -> None:
    old = cluster.memory.session("old")
    for path in ("/ledgers/available/b", "/ledgers/available/readonly/r"):
        await old.create(path, b"", ephemeral=True, make_parents=True)
    vote = "/ledgers/underreplication/auditorelection/V_"
    await old.create(vote, b"", ephemeral=True, sequential=True, make_parents=True)
    with pytest.raises(ProtectionRefusedError) as error:
        await cluster.protect()
    for name in ("bookie b ", "bookie r ", "auto-recovery worker V_0000000000 "):
        assert name in str(error.value)


async def test_foreign_processes_may_have_identities_of_their_own(cluster: Cluster) -> None:
    pulsar = await cluster.start("p1", identity=OTHER, announce=False)
    wanted = Wanted((OURS, OTHER), (ADMIN,), ("/ledgers",), frozenset({"p1"}))
    await cluster.protect(wanted)
    await pulsar.set(PASSWORD, b"z", ANY)


async def test_a_process_that_has_not_heard_stops_it_before_any_list_changes(
    cluster: Cluster,
) -> None:
    await cluster.start("b0")
    deaf = await cluster.start("b1", follow=False)
    before = await cluster.lists()
    with pytest.raises(ProtectionRefusedError, match="broker b1 has not heard of the change yet"):
        await cluster.protect()
    assert await cluster.lists() == before
    assert (await cluster.cli.protection()).step is Step.PROTECTING
    deaf.close()  # it was killed
    after = await cluster.protect()
    assert (after.step, after.generation) == (Step.PROTECTED, 1)
    assert await cluster.lists() != before


@pytest.mark.parametrize("after", range(0, 20, 3))
async def test_an_interrupted_run_is_repeated(
    cluster: Cluster, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start("b1")
    set_acl, calls = cluster.cli.set_acl, 0
    scope = trio.CancelScope()

    async def cancelled(path: str, acl: tuple[Grant, ...]) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            scope.cancel()
            await trio.lowlevel.checkpoint()
        await set_acl(path, acl)

    monkeypatch.setattr(cluster.cli, "set_acl", cancelled)
    with scope:
        await cluster.protect()
    assert scope.cancelled_caught
    assert (await cluster.cli.protection()).step is Step.PROTECTING
    # A process that starts in between follows the lists already.
    await cluster.start("b2")
    monkeypatch.setattr(cluster.cli, "set_acl", set_acl)
    again = await cluster.protect()
    assert (again.step, again.generation) == (Step.PROTECTED, 1)
    assert (await count_changes(cluster.cli, again.acl, whole_tree=False)).changed == 0


async def test_the_way_there_and_back(cluster: Cluster) -> None:
    await cluster.start("b1")
    before = await cluster.lists()
    for generation in (1, 3):
        await cluster.protect()
        await require(cluster.cli, WANTED, whole_tree=False)
        assert (await cluster.cli.protection()).step is Step.REQUIRED
        assert (await cluster.undo()).step is Step.PROTECTED
        assert (await cluster.cli.protection()).generation == generation
        assert (await cluster.undo()).step is Step.OPEN
        assert await cluster.lists() == before
        assert await cluster.cli.get_children(PATH) == []
        await cluster.stranger.set(PASSWORD, b"stranger", ANY)
        await cluster.stranger.create("/free", b"")
        await cluster.stranger.delete("/free", ANY)
    assert (await cluster.undo()).step is Step.OPEN


async def test_an_undo_waits_for_all_and_can_be_repeated(cluster: Cluster) -> None:
    await cluster.protect()
    deaf = await cluster.start("b1", follow=False)
    with pytest.raises(ProtectionRefusedError, match="have not heard of the change yet: broker b1"):
        await cluster.undo()
    assert (await cluster.cli.protection()).step is Step.OPENING
    deaf.close()
    assert (await cluster.undo()).step is Step.OPEN
    await cluster.stranger.set(PASSWORD, b"", ANY)


async def test_require_follows_protect_alone(cluster: Cluster) -> None:
    with pytest.raises(ProtectionRefusedError, match="the step is 'open'"):
        await require(cluster.cli, WANTED, whole_tree=False)
    await cluster.protect()
    await cluster.cli.set_acl(RECORDS[0], OPEN_ACL)
    with pytest.raises(ProtectionRefusedError, match="1 records have other lists"):
        await require(cluster.cli, WANTED, whole_tree=False)
    await cluster.protect()
    await cluster.start("b1", announce=False)
    with pytest.raises(ProtectionRefusedError, match="broker b1 announces nothing"):
        await require(cluster.cli, WANTED, whole_tree=False)


async def test_records_of_others_are_named(cluster: Cluster) -> None:
    other = cluster.memory.session(identity=OTHER)
    await other.create("/admin/theirs", b"", acl=(Grant(OWN, ALL),))
    with pytest.raises(ProtectionRefusedError, match=r"1 records .*/admin/theirs.*superDigest"):
        await cluster.protect()
    await other.set_acl("/admin/theirs", OPEN_ACL)
    assert (await cluster.protect()).step is Step.PROTECTED


async def test_other_applications_keep_their_records(cluster: Cluster) -> None:
    await cluster.stranger.create("/kafka/brokers", b"", make_parents=True)
    await cluster.protect()
    for path in ("/kafka", "/kafka/brokers", "/"):
        assert await cluster.cli.get_acl(path) == OPEN_ACL
    await cluster.stranger.create("/kafka/x", b"")


async def test_a_list_of_the_root_that_others_gave_stays(cluster: Cluster) -> None:
    theirs = (Grant(OTHER, ALL), Grant("world:anyone", "cdrw"))
    await cluster.cli.set_acl("/", theirs)
    await cluster.protect()
    await cluster.undo()
    other = cluster.memory.session(identity=OTHER)
    assert await other.get_acl("/") == theirs


async def test_the_root_of_a_chroot_belongs_to_the_cluster(cluster: Cluster) -> None:
    await cluster.stranger.create("/kafka", b"")
    await protect(cluster.cli, WANTED, whole_tree=True, timeout_s=5.0, report=silent)
    with pytest.raises(AccessDeniedError):
        await cluster.stranger.set("/kafka", b"", ANY)
    with pytest.raises(AccessDeniedError):
        await cluster.stranger.create("/more", b"")


async def test_a_password_is_exchanged_without_a_pause(cluster: Cluster) -> None:
    new = digest_identity("daybook", "new")
    old = await cluster.start("b1")
    await cluster.protect()
    await cluster.protect(Wanted((OURS, new), (ADMIN,), ("/ledgers",)))
    await cluster.start("b2", identity=new)
    old.close()
    cluster.cli = cluster.memory.session("cli", identity=new)
    after = await cluster.protect(Wanted((new,), (ADMIN,), ("/ledgers",)))
    assert after.generation == 3
    with pytest.raises(AccessDeniedError):
        await cluster.memory.session(identity=OURS).set(PASSWORD, b"", ANY)


# -- the command


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, daybook: Daybook, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    memory = MemoryStore(SystemClock())
    session = memory.session("cli", identity=OURS)

    @asynccontextmanager
    async def open_memory(_: str, **__: object) -> AsyncGenerator[MetadataStore]:
        yield session

    async def fill() -> None:
        for path in RECORDS:
            await session.create(path, b"x", make_parents=True)

    trio.run(fill)
    monkeypatch.setattr("daybook.clients.cli.metadata.open_zookeeper", open_memory)
    monkeypatch.setenv("DAYBOOK_ZOOKEEPER_USER", "daybook")
    monkeypatch.setenv("DAYBOOK_ZOOKEEPER_PASSWORD_FILE", str(tmp_path / "password"))
    (tmp_path / "password").write_text("p\n")
    return lambda *arguments: daybook("cluster", *arguments)


def test_the_command_demands_an_identity_of_the_operator(
    run: Callable[..., tuple[int, str, str]],
) -> None:
    assert run("identity")[1] == f"{OURS}\n"
    code, _, err = run("secure-metadata")
    assert code == 1
    assert "--admin-identity" in err
    assert run("secure-metadata", "--admin-identity", OURS)[0] == 1
    assert "is not an identity such as" in run("secure-metadata", "--admin-identity", "me")[2]
    code, out, _ = run("secure-metadata", "--admin-identity", ADMIN, "--output", "json")
    assert code == 0
    assert json.loads(out)["step"] == "protected"
    code, out, _ = run("secure-metadata")  # The identities are remembered.
    assert (code, "protected" in out) == (0, True)
    assert "required" in run("secure-metadata", "--require")[1]
    assert "protected" in run("secure-metadata", "--undo")[1]
    assert "open" in run("secure-metadata", "--undo")[1]


def test_a_dry_run_changes_nothing(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run("secure-metadata", "--admin-identity", ADMIN, "--dry-run")
    assert code == 0
    assert "records would get another list" in err
    assert "open" in out
    again = run("secure-metadata", "--admin-identity", ADMIN, "--dry-run")
    assert again == (code, out, err)


def test_a_dry_run_that_is_not_ready_fails(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def obstacles(*_: object) -> list[str]:
        return ["the broker b1 shows no identity"]

    monkeypatch.setattr(metadata_protection, "obstacles", obstacles)
    words = ("secure-metadata", "--admin-identity", ADMIN, "--output", "json")
    code, out, err = run(*words, "--dry-run")
    assert (code, json.loads(out)["step"]) == (1, "open")
    assert "Not ready, so the step would be refused: the broker b1 shows no identity." in err


def test_hashes_are_not_shown(run: Callable[..., tuple[int, str, str]]) -> None:
    everything = "".join(map(str, run("secure-metadata", "--admin-identity", ADMIN)))
    for identity in (OURS, ADMIN):
        assert identity.rpartition(":")[2] not in everything


def test_known_names_of_the_root_are_those_of_the_cluster() -> None:
    assert {path.split("/")[1] for path in RECORDS} <= metadata_protection.OURS
