"""A process returns memory when most of many connections have gone."""

import subprocess
import sys

from daybook.wire.process import Crowd


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
