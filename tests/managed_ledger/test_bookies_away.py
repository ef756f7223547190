"""A bookie is killed while a log is appended to: the log continues, and is whole again later."""

from dataclasses import replace

import pytest
import trio

from daybook.managed_ledger.position import EARLIEST
from tests.managed_ledger.world import CONFIG, World, append, play, read_all, send, settle, until

HEALING = replace(CONFIG, roll_entries=10_000, heal_interval_s=20.0)


@pytest.mark.parametrize("seed", range(3))
def test_it_goes_on_and_rolls_when_the_bookie_is_back(seed: int) -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(HEALING)
            cursor = await log.open_cursor("s", initial=EARLIEST)
            sent = send(log, range(50))
            await trio.sleep(0.01 * seed)
            world.kill("bookie-2")
            for first in range(50, 150, 10):
                send(log, range(first, first + 10), sent)
                await trio.sleep(0.01)
            await settle(sent)
            assert sent.acked == list(range(150))
            cursor.ack(sent.positions[:20])
            await cursor.flush()
            degraded = log.current_ledger_id
            for number in range(150, 160):
                await append(log, range(number, number + 1))
                await trio.sleep(10)
            assert log.current_ledger_id == degraded  # nothing would be gained
            await world.start("bookie-2")
            number = 160
            while log.current_ledger_id == degraded:
                await append(log, range(number, number + 1))
                await trio.sleep(5)
                number += 1
                assert number < 200
            whole = await host.client.metadata(log.current_ledger_id)
            assert len(set(whole.last_fragment.ensemble)) == 3
            await append(log, range(number, number + 5))
            assert await read_all(log) == list(range(number + 5))
            log.abandon()
            log = await host.open(HEALING)
            assert await read_all(log) == list(range(number + 5))
            assert log.cursors["s"].mark_delete == sent.positions[19]

    play(scenario, seed)


def test_with_too_few_bookies_appends_wait_and_nothing_is_lost() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open(HEALING)
            await append(log, range(10))
            world.kill("bookie-1")
            world.kill("bookie-2")
            sent = send(log, range(10, 20))
            await trio.sleep(60)
            assert not sent.acked
            assert log.waiting_for
            await world.start("bookie-1")
            await settle(sent)
            assert sent.acked == list(range(10, 20))
            await until(lambda: not log.waiting_for)
            assert await read_all(log) == list(range(20))

    play(scenario)


def test_a_roll_that_finds_too_few_bookies_is_tried_again() -> None:
    async def scenario(world: World) -> None:
        async with world.host("a") as host:
            log = await host.open()
            await append(log, range(3))
            first = log.current_ledger_id
            world.kill("bookie-1")
            world.kill("bookie-2")
            await trio.sleep(5)
            log.roll()
            await trio.sleep(20)
            assert log.current_ledger_id == first
            assert log.fenced is None
            await world.start("bookie-1")
            await append(log, range(3, 12))
            assert log.current_ledger_id != first
            assert await read_all(log) == list(range(12))

    play(scenario)
