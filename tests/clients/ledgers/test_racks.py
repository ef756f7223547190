"""Racks from the settings of a bookie to the ensembles of an application."""

from collections.abc import AsyncGenerator

import pytest
import trio
from trio.abc import Clock

from daybook.clients import ledgers
from daybook.clients.ledgers import Client, Placement, RackRule, RackTable
from tests.clients.ledgers.world import World, open_world


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    """Run three bookies in one rack, and one in another."""
    async with open_world(bookies=0) as world:
        world.racks = {"b1": "/a", "b2": "/a", "b3": "/a", "b4": "/b"}
        for name in world.racks:
            await world.start(name)
        yield world


async def racks_of(world: World, client: Client) -> set[str]:
    writer = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
    writer.abandon()
    names = writer.metadata.last_fragment.ensemble
    return {world.racks[name.partition(":")[0]] for name in names}


async def test_what_bookies_say_of_themselves_is_followed(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client() as client:
        for _ in range(20):
            assert await racks_of(world, client) == {"/a", "/b"}


async def test_a_table_takes_the_place_of_what_they_say(
    world: World, autojump_clock: Clock
) -> None:
    table = RackTable({"b1": "/x", "b2": "/y", "b3": "/y", "b4": "/y"})
    async with world.client(placement=Placement(table)) as client:
        for _ in range(20):
            writer = await client.create(ensemble=2, write_quorum=2, ack_quorum=2)
            writer.abandon()
            assert "b1:3181" in writer.metadata.last_fragment.ensemble


async def test_an_enforced_rule_leaves_a_place_empty_rather_than_break_it(
    world: World, autojump_clock: Clock
) -> None:
    """The writer goes on with the confirming bookies, and takes a fitting one when there is one."""
    rule = RackRule(least=2, enforced=True)
    async with world.client(placement=Placement(rule=rule)) as client:
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"0")
        world.stop("b4")
        await writer.append(b"1")
        await trio.sleep(20)
        await writer.append(b"2")
        assert len(writer.metadata.fragments) == 1
        with pytest.raises(ledgers.NotEnoughBookiesError, match="do not enforce racks"):
            await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        world.racks["b5"] = "/c"
        await world.start("b5")
        await trio.sleep(5)
        await writer.append(b"3")
        assert "b5:3181" in writer.metadata.last_fragment.ensemble
        await writer.close()
