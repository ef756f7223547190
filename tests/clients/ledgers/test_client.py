"""Ledgers by the trio client: create, open, delete, list, and their errors."""

from collections.abc import AsyncGenerator, Callable

import pytest
import trio
from trio.abc import Clock

from daybook.clients import ledgers
from daybook.clients.ledgers import Client, Digest
from daybook.clients.ledgers.client import open_client
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import NoAnswerError, Request
from tests.clients.ledgers.world import ROOT, World, open_world


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    async with open_world() as world:
        yield world


@pytest.fixture
async def client(world: World) -> AsyncGenerator[Client]:
    async with world.client() as client:
        yield client


async def read_all(reader: ledgers.Reader) -> list[bytes]:
    return [entry.data async for entry in reader.read()]


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "none"])
async def test_every_digest_there_and_back(
    client: Client, digest: Digest, autojump_clock: Clock
) -> None:
    custom = {"application": b"test", "bytes": bytes(range(256))}
    async with await client.create(digest=digest, password=b"pw", custom=custom) as writer:
        assert await writer.append(b"one") == 0
        assert await writer.append(bytearray(b"two")) == 1
        assert await writer.append(memoryview(b"")) == 2
    reader = await client.open(writer.ledger_id, recover=False, password=b"pw")
    assert (reader.closed, reader.last_add_confirmed, reader.length) == (True, 2, 6)
    entries = [entry async for entry in reader.read()]
    assert entries == [
        ledgers.Entry(0, b"one", 3),
        ledgers.Entry(1, b"two", 6),
        ledgers.Entry(2, b"", 6),
    ]
    metadata = await client.metadata(writer.ledger_id)
    assert metadata.state is ledgers.LedgerState.CLOSED
    assert (metadata.quorums, metadata.custom) == (ledgers.Quorums(3, 3, 2), custom)
    with pytest.raises(ledgers.UnauthorizedError):
        await client.open(writer.ledger_id, recover=False, password=b"guess")


async def test_an_unknown_digest_and_quorums_that_make_no_sense_are_refused(
    client: Client, autojump_clock: Clock
) -> None:
    with pytest.raises(ValueError, match="digest must be one of crc32c, crc32, hmac, none"):
        await client.create(digest="md5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ack <= write <= ensemble"):
        await client.create(ensemble=3, write_quorum=2, ack_quorum=3)
    with pytest.raises(ledgers.NotEnoughBookiesError) as caught:
        await client.create(ensemble=5, write_quorum=5, ack_quorum=4)
    assert caught.value.remedy is ledgers.Remedy.RETRY
    assert [ledger_id async for ledger_id in client.list_ledgers()] == []


async def test_an_id_of_ones_own_is_taken_once(client: Client, autojump_clock: Clock) -> None:
    big = (1 << 62) + 17
    for ledger_id in (17, big):
        writer = await client.create(ledger_id=ledger_id)
        assert writer.ledger_id == ledger_id
        with pytest.raises(ledgers.LedgerExistsError, match=str(ledger_id)):
            await client.create(ledger_id=ledger_id)
        assert await writer.append(b"still ours") == 0
    assert [ledger_id async for ledger_id in client.list_ledgers()] == [17, big]
    for ledger_id in (-1, 1 << 63):
        with pytest.raises(ValueError, match="a ledger id must be"):
            await client.create(ledger_id=ledger_id)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_creation_whose_answer_is_lost_is_not_taken_for_anothers(
    world: World, client: Client, applied: bool, autojump_clock: Clock
) -> None:
    world.link().lose_next(applied=applied, operation="create", path=f"{ROOT}/00/0000/L0017")
    writer = await client.create(ledger_id=17)
    assert await writer.append(b"ours") == 0


@pytest.mark.parametrize("what", ["create", "delete"])
async def test_a_lost_answer_stays_in_doubt_when_the_store_then_is_away(
    world: World,
    client: Client,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: Clock,
) -> None:
    """The second attempt was certainly not carried out; the first one was."""
    session, link = world.sessions["client"], world.link()

    async def lost(request: Request, execute: Callable[[], None]) -> None:
        execute()
        if request.operation == what and request.path.endswith("L0017"):
            session.suspend()
            raise NoAnswerError

    await client.create(ledger_id=18)
    if what == "delete":
        await client.create(ledger_id=17)
    monkeypatch.setattr(link, "request", lost)
    with pytest.raises(ledgers.MetadataInDoubtError):
        await (client.create(ledger_id=17) if what == "create" else client.delete(17))
    session.resume()
    existing = [ledger_id async for ledger_id in client.list_ledgers()]
    assert existing == ([17, 18] if what == "create" else [18])


async def test_a_ledger_that_was_deleted_is_gone_and_deleting_again_is_fine(
    client: Client, autojump_clock: Clock
) -> None:
    async with await client.create() as writer:
        await writer.append(b"x")
    await client.delete(writer.ledger_id)
    await client.delete(writer.ledger_id)
    for attempt in (client.metadata(writer.ledger_id), client.open(writer.ledger_id, recover=True)):
        with pytest.raises(ledgers.NoSuchLedgerError):
            await attempt


async def test_opening_with_recovery_takes_the_ledger_from_its_writer(
    world: World, client: Client, autojump_clock: Clock
) -> None:
    writer = await client.create()
    for number in range(50):
        await writer.append_soon(b"%d" % number)
    await writer.flush()
    async with world.client(name="other") as other:
        reader = await other.open(writer.ledger_id, recover=True)
        assert reader.closed
        assert await read_all(reader) == [b"%d" % number for number in range(50)]
        with pytest.raises(ledgers.InDoubtError) as caught:
            await writer.append(b"late")
        assert isinstance(caught.value.__cause__, ledgers.LedgerFencedError)
        assert caught.value.outcome is ledgers.Outcome.UNKNOWN
        assert caught.value.remedy is ledgers.Remedy.REOPEN
        with pytest.raises(ledgers.LedgerFencedError):
            await writer.append(b"later")
        with pytest.raises(ledgers.LedgerFencedError):
            await writer.close()
        again = await other.open(writer.ledger_id, recover=True)
        assert again.last_add_confirmed == 49


async def test_opening_without_recovery_is_not_noticed_and_shows_the_last_entry(
    world: World, client: Client, autojump_clock: Clock
) -> None:
    writer = await client.create()
    await writer.append(b"one")
    await writer.append(b"two")
    await trio.sleep(1)
    async with world.client(name="other") as other:
        reader = await other.open(writer.ledger_id, recover=False)
        assert (reader.closed, reader.last_add_confirmed) == (False, 1)
        assert await read_all(reader) == [b"one", b"two"]
        await writer.append(b"three")
        await trio.sleep(1)
        assert reader.last_add_confirmed == 1
        assert await reader.read_last_add_confirmed() == 2
        assert await read_all(reader) == [b"one", b"two", b"three"]


async def test_recovery_with_too_few_bookies_says_that_it_may_be_tried_again(
    world: World, client: Client, autojump_clock: Clock
) -> None:
    writer = await client.create()
    await writer.append(b"x")
    writer.abandon()
    for name in ("b1", "b2"):
        world.stop(name)
    with pytest.raises(ledgers.RecoveryAbortedError) as caught:
        await client.open(writer.ledger_id, recover=True)
    assert caught.value.remedy is ledgers.Remedy.RETRY
    await world.start("b1")
    reader = await client.open(writer.ledger_id, recover=True)
    assert await read_all(reader) == [b"x"]


async def test_recovery_is_tried_again_until_enough_bookies_are_back(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        writer.abandon()
        for name in ("b1", "b2"):
            world.stop(name)
        started = trio.current_time()
        with pytest.raises(ledgers.RecoveryAbortedError):
            await client.open(writer.ledger_id, recover=True, patience_s=20)
        assert 20 <= trio.current_time() - started < 40
        readers: list[ledgers.Reader] = []

        async def recover() -> None:
            readers.append(await client.open(writer.ledger_id, recover=True, patience_s=60))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(recover)
            await trio.sleep(10)
            await world.start("b1")
        assert [entry.data async for entry in readers[0].read()] == [b"0"]
        with pytest.raises(ledgers.NoSuchLedgerError), trio.fail_after(1):
            await client.open(99, recover=True, patience_s=60)


async def test_without_a_metadata_store_errors_say_so(
    world: World, client: Client, autojump_clock: Clock
) -> None:
    writer = await client.create()
    await writer.append(b"x")
    world.metadata.suspend()
    with pytest.raises(ledgers.MetadataUnavailableError) as caught:
        await client.metadata(writer.ledger_id)
    assert (caught.value.outcome, caught.value.remedy) == (
        ledgers.Outcome.NOT_APPLIED,
        ledgers.Remedy.RETRY,
    )
    assert await writer.append(b"bookies do not need it") == 1
    with pytest.raises(ledgers.MetadataUnavailableError):
        await writer.close()
    world.metadata.resume()
    await writer.close()
    assert (await client.metadata(writer.ledger_id)).last_entry_id == 1


async def test_a_root_without_ledgers_is_told(world: World, autojump_clock: Clock) -> None:
    with pytest.raises(ledgers.ClusterError, match="no bookie has ever started here"):
        async with open_client(
            store=world.metadata.session("stray"),
            root="/elsewhere",
            network=world.network.of("stray"),
            rng=world.rng,
            clock=SystemClock(),
        ):
            pytest.fail("there is nothing to be connected to")


async def test_what_outlives_the_block_of_the_client_says_that_it_was_closed(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client() as client:
        writer = await client.create()
        await writer.append(b"x")
        reader = await client.open(writer.ledger_id, recover=False)
        tail = reader.tail(5)
    with pytest.raises(ledgers.LedgerClosedError):
        await writer.append(b"y")
    with pytest.raises(ledgers.LedgerClosedError):
        await writer.close()
    for attempt in (client.create(), reader.read_last_add_confirmed(), anext(tail)):
        with pytest.raises(ledgers.LedgerClosedError, match="the client was closed"):
            await attempt
    async with world.client(name="other") as other:
        recovered = await other.open(writer.ledger_id, recover=True)
        assert await read_all(recovered) == [b"x"]


@pytest.mark.parametrize(
    "what", ["create", "delete", "metadata", "open", "recover", "look", "tail"]
)
async def test_what_is_under_way_when_the_client_ends_says_so(
    world: World, autojump_clock: Clock, what: str
) -> None:
    """No bookie answers in the meantime, and after the end nobody would be told."""
    errors: list[ledgers.LedgerError] = []
    slow = ("create", "delete", "metadata", "look")

    async def ask(client: Client, ledger_id: int, reader: ledgers.Reader) -> None:
        try:
            match what:
                case "create":
                    await client.create()
                case "delete":
                    await client.delete(ledger_id)
                case "metadata":
                    await client.metadata(ledger_id)
                case "look":
                    await reader.read_last_add_confirmed()
                case "tail":
                    await anext(reader.tail(1))
                case _:
                    await client.open(ledger_id, recover=what == "recover")
        except ledgers.LedgerError as error:
            errors.append(error)

    async with world.client(name="other") as other:
        writer = await other.create()
        await writer.append(b"x")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery, world.client() as client:
                reader = await client.open(writer.ledger_id, recover=False)
                world.link().delay_s = 1.0 if what in slow else 0.0
                nursery.start_soon(ask, client, writer.ledger_id, reader)
                await trio.sleep(0.001)
    changes = what in ("create", "delete")
    expected = ledgers.MetadataInDoubtError if changes else ledgers.LedgerClosedError
    assert [type(error) for error in errors] == [expected]


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
async def test_an_error_of_the_application_comes_out_as_it_is(
    world: World, kind: type[BaseException], autojump_clock: Clock
) -> None:
    with pytest.raises(kind):
        async with world.client() as client, await client.create():
            raise kind


async def test_errors_say_what_helps_in_words() -> None:
    kinds = [getattr(ledgers, name) for name in ledgers.__all__ if name.endswith("Error")]
    assert len(kinds) == 21
    for kind in kinds:
        assert issubclass(kind, ledgers.LedgerError)
        assert isinstance(kind.outcome, ledgers.Outcome)
        assert " " in kind.remedy.value
