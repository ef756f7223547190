"""Headers of Kafka as properties: each becomes a property of its own, and comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.clients.spark.header_marks import BASE64, NULL, header_of, property_of

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
MARKS = st.lists(st.sampled_from([BASE64, NULL]), max_size=3).map("".join)


@given(st.tuples(MARKS, NAMES).map("".join), st.none() | st.binary() | NAMES.map(str.encode))
def test_each_header_comes_back(name: str, value: bytes | None) -> None:
    assert header_of(*property_of(name, value)) == (name, value)


@pytest.mark.parametrize(
    ("name", "value", "marked", "text"),
    [
        ("source", b"test", "source", "test"),
        ("", b"", "", ""),
        ("trace", b"\xff\0", f"{BASE64}trace", "/wA="),
        ("none", None, f"{NULL}none", ""),
        (f"{NULL}none", b"", f"{BASE64}{NULL}none", ""),
        (f"{BASE64}x", b"/wA=", f"{BASE64}{BASE64}x", "L3dBPQ=="),
        (f"{BASE64}x", None, f"{NULL}{BASE64}x", ""),
    ],
)
def test_what_is_no_text_is_marked(name: str, value: bytes | None, marked: str, text: str) -> None:
    assert property_of(name, value) == (marked, text)
    assert header_of(marked, text) == (name, value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"{BASE64}x", "no base64"),
        (f"{BASE64}x", "/wA"),
        (f"{BASE64}x", "/wB="),
        (f"{NULL}x", "y"),
        ("x", "/wA="),
    ],
)
def test_a_property_that_no_header_became_stays(name: str, text: str) -> None:
    assert header_of(name, text) == (name, text.encode())
