"""A process returns memory when most of many connections have gone."""

import subprocess
import sys
import weakref

from daybook.wire.process import Crowd, Leftovers, each_once


def test_memory_is_given_back_when_most_of_many_connections_have_gone() -> None:
    given_back: list[int] = []
    crowd = Crowd(lambda: given_back.append(left))
    for left in reversed(range(5000)):
        crowd.left(left)
    assert given_back == [2500, 1250, 250]


def test_a_few_connections_that_come_and_go_are_no_reason_to_collect() -> None:
    given_back: list[int] = []
    crowd = Crowd(lambda: given_back.append(left))
    for peak in (999, 500, 999):
        for left in reversed(range(peak)):
            crowd.left(left)
    assert given_back == []


def test_many_that_stay_are_no_reason_to_collect() -> None:
    given_back: list[int] = []
    crowd = Crowd(lambda: given_back.append(left))
    for left in reversed(range(2600, 5000)):
        crowd.left(left)
    assert given_back == []


def test_objects_that_come_and_go_all_the_time_leave_no_memory_behind() -> None:
    given_back, gone = list[int](), 0
    leftovers = Leftovers(lambda: given_back.append(gone))
    for gone in range(1, 3500):  # noqa: B007  the call back reads it
        leftovers.left()
        leftovers.look(10)
    assert given_back == [1000, 2000, 3000]


def test_a_collection_waits_until_as_many_have_gone_as_are_left() -> None:
    given_back, gone = list[int](), 0
    leftovers = Leftovers(lambda: given_back.append(gone))
    for gone in range(1, 9000):  # noqa: B007  the call back reads it
        leftovers.left()
        leftovers.look(4000)
    assert given_back == [4000, 8000]


def test_nothing_is_collected_while_objects_only_go() -> None:
    given_back: list[int] = []
    leftovers = Leftovers(lambda: given_back.append(1))
    for _ in range(9000):
        leftovers.left()
    assert given_back == []
    leftovers.look(4000)
    assert given_back == [1]
    leftovers.look(0)
    assert given_back == [1]


def test_a_loop_over_many_objects_keeps_none_that_has_gone() -> None:
    class Topic:
        pass

    topics = {number: Topic() for number in range(5)}
    names = iter(range(5))
    for topic in each_once(topics.values()):
        seen = weakref.ref(topic)
        del topics[next(names)], topic
        assert seen() is None
    assert not topics


_GROWS = """
import gc
from daybook.wire.process import settle

settle()
seen = []

def look(phase, info):
    if phase == "start":
        seen.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

gc.callbacks.append(look)
kept = [[] for _ in range(500_000)]
print(len(seen), max(seen))
"""


def test_a_server_that_grows_never_stops_for_all_that_is_new() -> None:
    # A collection of everything that came since the start would look at 500,000 objects.
    found = subprocess.run([sys.executable, "-c", _GROWS], check=True, capture_output=True)
    passes, most = map(int, found.stdout.split())
    assert passes > 20
    assert most < 50_000
