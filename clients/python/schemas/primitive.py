"""Schemas of single values: texts, numbers, times.  The encodings are those of Pulsar's clients.

Numbers are big-endian.  A time zone is needed where Pulsar stores a moment (TIMESTAMP, INSTANT),
and not allowed where it stores a wall clock.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from struct import Struct, error
from typing import Any, TypeVar

from daybook.clients.python.schemas.schema import Schema, SchemaInfo
from daybook.wire.proto import pulsar_pb2 as pb

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_ZERO = date(1970, 1, 1).toordinal()
_US, _NS_PER_US = timedelta(microseconds=1), 1000
_I64, _INSTANT, _PAIR = Struct(">q"), Struct(">qi"), Struct(">qq")


class Primitive(Schema[T]):
    """A schema that consists of its type."""

    def __init__(
        self,
        type_: int,
        kind: type[Any],
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
    ) -> None:
        self.info = SchemaInfo(type_)
        self._kind = kind
        self._encode = encode
        self._decode = decode

    def encode(self, value: T) -> bytes:
        # True is an int for Python, and no number here.
        if not isinstance(value, self._kind) or (
            isinstance(value, bool) and self._kind is not bool
        ):
            raise TypeError(
                f"a value of the schema {self.info.type_name} must be {self._kind.__name__}, not"
                f" {type(value).__name__}"
            )
        try:
            return self._encode(value)
        except (error, OverflowError) as cause:
            raise ValueError(
                f"{value!r} is no value of the schema {self.info.type_name}: {cause}"
            ) from None

    def decode(self, data: bytes) -> T:
        try:
            return self._decode(data)
        except (error, OverflowError, UnicodeDecodeError) as cause:
            raise ValueError(
                f"the message is not of the schema {self.info.type_name}: {cause}"
            ) from None


def _number(type_: int, layout: str, kind: type[T]) -> "Primitive[T]":
    packer = Struct(layout)

    def decode(data: bytes) -> T:
        value: T = packer.unpack(data)[0]
        return value

    return Primitive(type_, kind, packer.pack, decode)


def _microseconds(value: datetime) -> int:
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone: write datetime(..., tzinfo=timezone.utc)")
    return (value - _EPOCH) // _US


def _no_zone(value: datetime | time) -> None:
    if value.tzinfo is not None:
        raise ValueError(f"{value!r} has a time zone, and this schema has none")


def _encode_timestamp(value: datetime) -> bytes:
    return _I64.pack(_microseconds(value) // 1000)


def _decode_timestamp(data: bytes) -> datetime:
    return _EPOCH + timedelta(milliseconds=_I64.unpack(data)[0])


def _encode_instant(value: datetime) -> bytes:
    seconds, rest = divmod(_microseconds(value), 1_000_000)
    return _INSTANT.pack(seconds, rest * _NS_PER_US)


def _decode_instant(data: bytes) -> datetime:
    seconds, nanoseconds = _INSTANT.unpack(data)
    return _EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds // _NS_PER_US)


def _nanoseconds(value: time) -> int:
    _no_zone(value)
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return (seconds * 1_000_000 + value.microsecond) * _NS_PER_US


def _time_of(nanoseconds: int) -> time:
    return (_EPOCH + timedelta(microseconds=nanoseconds // _NS_PER_US)).time()


def _encode_date_time(value: datetime) -> bytes:
    _no_zone(value)
    return _PAIR.pack(value.toordinal() - _DAY_ZERO, _nanoseconds(value.time()))


def _decode_date_time(data: bytes) -> datetime:
    days, nanoseconds = _PAIR.unpack(data)
    return datetime.combine(date.fromordinal(days + _DAY_ZERO), _time_of(nanoseconds))


S = pb.Schema
STRING: Schema[str] = Primitive(S.String, str, str.encode, bytes.decode)
BOOLEAN: Schema[bool] = _number(S.Bool, ">?", bool)
INT8: Schema[int] = _number(S.Int8, ">b", int)
INT16: Schema[int] = _number(S.Int16, ">h", int)
INT32: Schema[int] = _number(S.Int32, ">i", int)
INT64: Schema[int] = _number(S.Int64, ">q", int)
FLOAT: Schema[float] = _number(S.Float, ">f", float)
DOUBLE: Schema[float] = _number(S.Double, ">d", float)
TIMESTAMP: Schema[datetime] = Primitive(S.Timestamp, datetime, _encode_timestamp, _decode_timestamp)
INSTANT: Schema[datetime] = Primitive(S.Instant, datetime, _encode_instant, _decode_instant)
LOCAL_DATE: Schema[date] = Primitive(
    S.LocalDate,
    date,
    lambda value: _I64.pack(value.toordinal() - _DAY_ZERO),
    lambda data: date.fromordinal(_I64.unpack(data)[0] + _DAY_ZERO),
)
LOCAL_TIME: Schema[time] = Primitive(
    S.LocalTime,
    time,
    lambda value: _I64.pack(_nanoseconds(value)),
    lambda data: _time_of(_I64.unpack(data)[0]),
)
LOCAL_DATE_TIME: Schema[datetime] = Primitive(
    S.LocalDateTime, datetime, _encode_date_time, _decode_date_time
)
BY_TYPE: dict[int, Schema[Any]] = {
    each.info.type: each
    for each in (
        STRING,
        BOOLEAN,
        INT8,
        INT16,
        INT32,
        INT64,
        FLOAT,
        DOUBLE,
        TIMESTAMP,
        INSTANT,
        LOCAL_DATE,
        LOCAL_TIME,
        LOCAL_DATE_TIME,
    )
}
