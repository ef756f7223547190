"""The functions that are made for a class do what fastavro does, or leave it to fastavro."""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from math import nan
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.clients.python.schemas.avro_codec import Codec, compiled
from daybook.clients.python.schemas.avro_records import AvroSchema
from daybook.clients.python.schemas.fields import Float32, Int32


class Color(Enum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass
class Point:
    x: int
    y: float = 0.0


class Leg(msgspec.Struct, kw_only=True):
    name: str
    ends: list[Point] = []


@dataclass
class Trip:
    name: str
    count: Int32
    number: int
    weight: Float32
    size: float
    paid: bool
    raw: bytes
    color: Color
    at: datetime
    day: date
    start: Point
    leg: Leg
    note: str | None = None
    nick: str | None = "x"
    stop: Point | None = None
    tags: list[str] = field(default_factory=list)
    maybe: list[int | None] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    grid: dict[str, list[Point]] = field(default_factory=dict)


TEXTS = st.text(max_size=70)
LONGS = st.one_of(
    st.integers(-70, 70), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-10_000, 10_000)
)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
POINTS = st.builds(Point, LONGS, st.floats(allow_nan=False))
TRIPS = st.builds(
    Trip,
    name=TEXTS,
    count=INTS,
    number=LONGS,
    weight=st.floats(width=32, allow_nan=False),
    size=st.floats(allow_nan=False),
    paid=st.booleans(),
    raw=st.binary(max_size=200),
    color=st.sampled_from(Color),
    at=st.datetimes(timezones=st.just(UTC)),
    day=st.dates(),
    start=POINTS,
    leg=st.builds(Leg, name=TEXTS, ends=st.lists(POINTS, max_size=2)),
    note=st.none() | TEXTS,
    nick=st.none() | TEXTS,
    stop=st.none() | POINTS,
    tags=st.lists(TEXTS, max_size=3),
    maybe=st.lists(st.none() | LONGS, max_size=3),
    sizes=st.dictionaries(TEXTS, LONGS, max_size=3),
    grid=st.dictionaries(TEXTS, st.lists(POINTS, max_size=2), max_size=2),
)


class LeftToFastAvroError(Exception):
    """A value, or bytes, that are left to fastavro."""


def left(_: object) -> Any:
    raise LeftToFastAvroError


def compiled_alone(cls: type[Any]) -> Codec[Any] | None:
    return compiled(cls, left, left)


def fastavro_alone(cls: type[Any]) -> AvroSchema[Any]:
    schema = AvroSchema[Any](cls)
    schema._codec = None
    return schema


CODEC = compiled_alone(Trip)
OTHER = fastavro_alone(Trip)


@given(TRIPS)
def test_records_are_encoded_and_decoded_as_by_fastavro(trip: Trip) -> None:
    assert CODEC is not None
    data = CODEC.encode(trip)
    assert data == OTHER.encode(trip)
    assert CODEC.decode(data) == trip == OTHER.decode(data)


@given(TRIPS, st.data())
def test_damaged_bytes_are_decoded_as_by_fastavro_or_left_to_it(trip: Trip, draw: Any) -> None:
    assert CODEC is not None
    data = bytearray(CODEC.encode(trip))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    damaged = bytes(
        data[: draw.draw(st.integers(0, len(data)))] if draw.draw(st.booleans()) else data
    )
    with suppress(LeftToFastAvroError):
        found = CODEC.decode(damaged)
        assert repr(found) == repr(OTHER.decode(damaged))  # repr: nan is not equal to itself


@pytest.mark.parametrize(
    "change",
    [
        {"count": 1 << 31},
        {"number": 1 << 63},
        {"number": 1.0},
        {"number": True},
        {"name": 7},
        {"paid": 1},
        {"raw": "text"},
        {"color": "green"},
        {"start": None},
        {"start": {"x": 1}},
        {"tags": [1]},
        {"tags": ("a",)},
        {"sizes": {1: 1}},
        {"at": datetime(2026, 11, 24)},  # noqa: DTZ001
        {"at": 5},
        {"day": datetime(2026, 11, 24, tzinfo=UTC)},
        {"weight": 1e39},
        {"size": "1"},
        {"note": 5},
    ],
)
def test_unusual_values_are_left_to_fastavro(change: dict[str, Any]) -> None:
    point = Point(1, nan)
    values: dict[str, Any] = {
        "name": "n",
        "count": 1,
        "number": 2,
        "weight": 0.5,
        "size": 3.0,
        "paid": False,
        "raw": b"",
        "color": Color.RED,
        "at": datetime(2026, 11, 24, tzinfo=UTC),
        "day": date(2026, 11, 24),
        "start": point,
        "leg": Leg(name="l"),
    }
    assert CODEC is not None
    CODEC.encode(Trip(**values))
    with pytest.raises(LeftToFastAvroError):
        CODEC.encode(Trip(**{**values, **change}))


def test_what_follows_a_record_is_left_to_fastavro() -> None:
    codec = compiled_alone(Point)
    assert codec is not None
    data = codec.encode(Point(1, 2.0))
    with pytest.raises(LeftToFastAvroError):
        codec.decode(data + b"\0")
    assert AvroSchema(Point).decode(data + b"\0") == Point(1, 2.0)


@dataclass
class Tree:
    name: str
    left: "Tree | None" = None


@dataclass
class Checked:
    age: Annotated[int, msgspec.Meta(ge=0)]


@dataclass
class Either:
    one: int | str | None


@dataclass
class Made:
    name: str
    size: int = field(init=False, default=0)


@dataclass
class Empty:
    pass


@dataclass
class Swapped:
    first: str
    second: str

    def __init__(self, second: str, first: str) -> None:
        self.first, self.second = first, second


def test_fields_have_their_values_whatever_the_order_of_the_parameters() -> None:
    codec = compiled_alone(Swapped)
    assert codec is not None
    value = Swapped(first="a", second="b")
    assert (
        codec.decode(codec.encode(value))
        == value
        == fastavro_alone(Swapped).decode(codec.encode(value))
    )


@pytest.mark.parametrize("cls", [Tree, Checked, Either, Made, Empty])
def test_other_classes_are_left_to_fastavro(cls: type[Any]) -> None:
    assert compiled_alone(cls) is None


def test_a_class_whose_checks_fail_is_refused() -> None:
    checked = AvroSchema(Checked)
    with pytest.raises(ValueError, match="no Checked"):
        checked.decode(checked.encode(Checked(-1)))
