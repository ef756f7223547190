"""Places of loads: who gets the next one, and that none is lost."""

import trio
import trio.testing

from daybook.broker.topics.load_places import LoadPlaces


class Loads:
    """Loads that take places of their own number; `order` is the one in which they got them."""

    def __init__(self, nursery: trio.Nursery, places: int) -> None:
        self.places = LoadPlaces(places)
        self.order: list[str] = []
        self.scopes: dict[str, trio.CancelScope] = {}
        self._nursery = nursery

    async def begin(self, load: str, callers: int) -> None:
        self._nursery.start_soon(self._take, load, callers)
        await trio.testing.wait_all_tasks_blocked()

    async def _take(self, load: str, callers: int) -> None:
        with trio.CancelScope() as self.scopes[load]:
            await self.places.take(load, callers)
            self.order.append(load)

    async def end_all(self, count: int) -> str:
        """Give so many places back, one after the other; return who has got one so far."""
        for _ in range(count):
            self.places.give_back()
            await trio.testing.wait_all_tasks_blocked()
        return " ".join(self.order)


async def test_the_load_that_most_callers_wait_for_comes_first() -> None:
    async with trio.open_nursery() as nursery:
        loads = Loads(nursery, 1)
        for load, callers in {"a": 1, "b": 1, "c": 2, "d": 900, "e": 1000, "f": 3}.items():
            await loads.begin(load, callers)
        assert await loads.end_all(3) == "a d e c", "c and f are equals: a few more do not count"
        nursery.cancel_scope.cancel()


async def test_every_fourth_place_goes_to_the_one_that_came_first() -> None:
    async with trio.open_nursery() as nursery:
        loads = Loads(nursery, 1)
        await loads.begin("a", 1)
        await loads.begin("cold", 1)
        await loads.begin("cool", 1)
        for number in range(7):
            await loads.begin(f"hot{number}", 50)
        assert await loads.end_all(9) == ("a hot0 hot1 hot2 cold hot3 hot4 hot5 cool hot6")


async def test_callers_that_come_later_and_callers_that_leave_count() -> None:
    async with trio.open_nursery() as nursery:
        loads = Loads(nursery, 1)
        for load, callers in {"a": 1, "b": 1, "c": 8, "d": 1, "e": 1}.items():
            await loads.begin(load, callers)
        loads.places.called("a", 100)  # It does not wait any more, and nothing happens.
        loads.places.called("d", 4)
        loads.places.called("c", 1)
        assert await loads.end_all(4) == "a d b e c", "c lost its turn, and is behind its equals"


async def test_a_load_that_is_given_up_while_it_waits_takes_no_place() -> None:
    async with trio.open_nursery() as nursery:
        loads = Loads(nursery, 1)
        for load in "abc":
            await loads.begin(load, 1)
        loads.scopes["b"].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert await loads.end_all(1) == "a c"


async def test_a_place_that_is_handed_to_a_load_that_is_given_up_goes_to_the_next() -> None:
    async with trio.open_nursery() as nursery:
        loads = Loads(nursery, 1)
        for load in "abc":
            await loads.begin(load, 1)
        loads.scopes["b"].cancel()
        loads.places.give_back()  # Before b has noticed that it was cancelled.
        await trio.testing.wait_all_tasks_blocked()
        assert loads.order == ["a", "c"]
        await loads.end_all(1)
        await loads.begin("d", 1)
        assert loads.order == ["a", "c", "d"], "the place is free again"
