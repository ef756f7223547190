"""The table of complaints in `docs/correctness.md`: each test exists and names its threads.

Threads of brokers, bookies and connectors that the project has promised a test for are all in the
table.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "correctness.md").read_text()
ROW = re.compile(
    r"^\| (pulsar|bookkeeper|spark|pulsar-spark) ([\d, ]+) \| [^|]+ \| `([^`]+)` \|$", re.MULTILINE
)
ROWS = ROW.findall(PAGE)
PULSAR = (
    "22657 2431 21104 24231 22534 21199 21396 7792 25394 14183 15390 25047 5543 759 5755 23805"
    " 5202 26125 22716 20099 23149 10497 14861 12509 7270 26236 26240"
)
BOOKKEEPER = "3929 4607 4097 3302 2927"
SPARK = "20836 15820 20698 24613 57351 54237"
PULSAR_SPARK = "181 178 117"


@pytest.mark.parametrize(("project", "threads", "test"), ROWS, ids=[row[1] for row in ROWS])
def test_each_row_names_a_test_that_names_its_threads(
    project: str, threads: str, test: str
) -> None:
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text()
    assert project in text.lower(), path
    if name and name != "test_scenario":  # A scenario is named by its key in a table of them.
        begin = text.index(f"def {name}(")
        following = re.compile(r"^(async )?def |^@", re.MULTILINE).search(text, begin + 1)
        text = text[begin : following.start() if following else None]
    for thread in threads.split(", "):
        assert re.search(rf"(?<!\d){thread}(?!\d)", text), f"{path} does not name {thread}"


def test_no_thread_is_missing_or_there_twice() -> None:
    found = [(project, each) for project, threads, _ in ROWS for each in threads.split(", ")]
    expected = [("pulsar", each) for each in PULSAR.split()]
    expected += [("bookkeeper", each) for each in BOOKKEEPER.split()]
    expected += [("spark", each) for each in SPARK.split()]
    expected += [("pulsar-spark", each) for each in PULSAR_SPARK.split()]
    assert sorted(found) == sorted(expected)
