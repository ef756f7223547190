"""The offsets in the checkpoint of a Spark stream, which old checkpoints must still match."""

import json
from pathlib import Path

from daybook.clients.spark.offsets import parse_offsets
from daybook.clients.spark.source import decode_offsets, encode_offsets

GOLDEN = Path(__file__).parents[2] / "golden" / "spark_v1" / "offset.json"


def test_an_offset_is_as_it_was_released() -> None:
    released = GOLDEN.read_text().strip()
    assert json.dumps(encode_offsets({1: 7, 0: 5, 10: 0})) == released
    assert decode_offsets(json.loads(released)) == {0: 5, 1: 7, 10: 0}


def test_it_is_understood_as_an_option_too() -> None:
    assert parse_offsets(GOLDEN.read_text(), "t", "startingOffsets") == {0: 5, 1: 7, 10: 0}
