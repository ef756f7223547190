"""The totals of the demo are compared message by message with what pandas computes."""

import json
from pathlib import Path

import pandas as pd

from examples.flights import carriers

ROWS = pd.DataFrame(
    {
        "partition": [0, 0, 0, 1, 1],
        "offset": [0, 1, 2, 0, 1],
        "carrier": ["UA", "AA", "UA", "B6", "B6"],
        "delay": [2.0, 4.0, -1.0, float("nan"), 7.0],
    }
)
EXPECTED: carriers.Totals = {"UA": [(1, 2), (2, 1)], "AA": [(1, 4)], "B6": [(1, 0), (2, 7)]}


def write_offsets(checkpoint: Path, ends: list[dict[int, int]]) -> None:
    (checkpoint / "offsets").mkdir(parents=True)
    for number, end in enumerate(ends):
        by_partition = {str(index): {"created": 17, "next": each} for index, each in end.items()}
        line = json.dumps({"topics": {"persistent://public/default/flights": by_partition}})
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{line}")
    (checkpoint / "offsets" / ".0.crc").write_bytes(b"crc")


def test_micro_batches_end_where_the_checkpoint_says(tmp_path: Path) -> None:
    ends = [{0: n, 1: n} for n in range(12)]  # by number, not by name: 10 comes after 9
    write_offsets(tmp_path, [*ends, ends[-1]])
    assert carriers.micro_batches(tmp_path) == ends


def test_the_totals_are_those_of_the_rows_of_each_micro_batch() -> None:
    assert carriers.expected_totals(ROWS, [{0: 2, 1: 1}, {0: 3, 1: 2}]) == EXPECTED


def test_a_message_that_is_missing_written_twice_or_out_of_order_is_a_difference() -> None:
    assert carriers.compare(EXPECTED, EXPECTED) == []
    for wrong in ([(2, 1)], [(1, 2), (1, 2), (2, 1)], [(2, 1), (1, 2)]):
        (difference,) = carriers.compare({**EXPECTED, "UA": wrong}, EXPECTED)
        assert difference.startswith("totals: UA: ")
    assert len(carriers.compare({}, EXPECTED)) == 3
