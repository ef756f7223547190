"""The memory of topics that have gone is given back, but not in the midst of their going."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.protocol.bundles import BundleName
from daybook.broker.topics.rates import PERIOD_S
from daybook.wire import process
from daybook.wire.process import Leftovers
from daybook.wire.topics import TopicName
from tests.harness.broker import Cluster, open_broker

_COUNT = 5
_ALL = BundleName("public/default/0x00000000_0xffffffff")
_NAMES = [TopicName.parse(f"t{number}") for number in range(_COUNT)]


async def _unload(cluster: Cluster) -> None:
    for name in _NAMES:
        await cluster.broker.topics.unload(name)


async def _drop(cluster: Cluster) -> None:
    cluster.broker.topics.drop_bundle(_ALL)


@pytest.mark.parametrize("end", [_unload, _drop])
@pytest.mark.parametrize("then", ["a load", "a minute"])
async def test_memory_is_given_back(
    end: Callable[[Cluster], Awaitable[None]],
    then: str,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    monkeypatch.setattr(process, "_GONE_MIN", _COUNT)
    given_back: list[int] = []
    async with open_broker() as cluster:
        topics = cluster.broker.topics
        topics._leftovers = Leftovers(lambda: given_back.append(len(topics.loaded)))  # pyright: ignore[reportPrivateUsage]
        for name in _NAMES:
            await topics.get(name, create=True)
        await end(cluster)
        await trio.sleep(1)
        assert given_back == []
        if then == "a load":
            await topics.get(_NAMES[0], create=True)
            assert given_back == [1]
        else:
            await trio.sleep(PERIOD_S)
            assert given_back == [0]
