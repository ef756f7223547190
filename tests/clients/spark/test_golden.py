"""The offsets in the checkpoint of a Spark stream, which old checkpoints must still match."""

import json
from pathlib import Path
from typing import Any

import pytest

from daybook.clients.spark.checkpoint import StreamOffset, decode_offset, encode_offset
from daybook.clients.spark.offsets import Partition, Progress, parse_offsets

GOLDEN = Path(__file__).parents[2] / "golden"
VERSION_1 = (GOLDEN / "spark_v1" / "offset.json").read_text()
VERSION_2 = (GOLDEN / "spark_v2" / "offset.json").read_text()
T, U = "persistent://public/default/t", "persistent://shop/eu/u"
OFFSET = StreamOffset(
    {
        Partition(U, 0): Progress(0),
        Partition(T, 10): Progress(0, 117),
        Partition(T, 1): Progress(7, 115),
        Partition(T, 0): Progress(5, 114),
    },
    "46297825-4ccc-457e-a0cf-1b11b115bcef",
)


def test_an_offset_is_as_it_was_released() -> None:
    assert json.dumps(encode_offset(OFFSET)) == VERSION_2.strip()
    assert decode_offset(json.loads(VERSION_2), None) == OFFSET


def test_version_1_is_still_read() -> None:
    assert decode_offset(json.loads(VERSION_1), T) == StreamOffset(
        {Partition(T, 0): Progress(5), Partition(T, 1): Progress(7), Partition(T, 10): Progress(0)}
    )


def test_version_1_names_no_topic_so_a_query_of_several_cannot_use_it() -> None:
    with pytest.raises(ValueError, match="run it once with the option `topic`"):
        decode_offset(json.loads(VERSION_1), None)


def test_version_1_is_understood_as_an_option_too() -> None:
    expected = {Partition(T, 0): 5, Partition(T, 1): 7, Partition(T, 10): 0}
    assert parse_offsets(VERSION_1, T, "startingOffsets") == expected


def test_what_a_broker_does_not_tell_is_left_out() -> None:
    offset = StreamOffset({Partition(T, 0): Progress(5)})
    assert encode_offset(offset) == {"topics": {T: {"0": {"next": 5}}}, "version": 2}
    assert decode_offset(encode_offset(offset), None) == offset
    empty = StreamOffset({})
    assert decode_offset(encode_offset(empty), None) == empty


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ({"version": 3, "topics": {}}, "version 3, and this release knows version 2"),
        ({"version": 2}, "the checkpoint of another query"),
        ({"version": 2, "topics": {T: {"0": 5}}}, "the checkpoint of another query"),
        ({"version": 2, "topics": {T: {"0": {"created": 5}}}}, "the checkpoint of another query"),
        ({"logOffset": 5}, "the checkpoint of another query"),
        ({"0": "5"}, "the checkpoint of another query"),
    ],
)
def test_other_offsets_are_refused(stored: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decode_offset(stored, T)
