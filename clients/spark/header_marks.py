"""Headers of Kafka as properties, without a loss.

A header of Kafka has bytes or null as its value, and a property has a text.  So most headers are
properties as they are, and the others are marked in their names:

    header                              property
    NAME = a text in UTF-8              NAME = the text
    NAME = other bytes                  daybook.base64:NAME = base64 of the bytes
    NAME = null                         daybook.null:NAME = ""

A header whose own name begins with a mark is marked once more, as `daybook.base64:` or
`daybook.null:`.  So each property is that of one header, and headers keep their order.
"""

# pyright: basic
# (the libraries underneath have no types)

from base64 import b64decode, b64encode
from contextlib import suppress

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

BASE64 = "daybook.base64:"
NULL = "daybook.null:"


def property_of(name: str, value: bytes | None) -> tuple[str, str]:
    """Return the property of a header."""
    if value is None:
        return f"{NULL}{name}", ""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        pass
    else:
        if not name.startswith((BASE64, NULL)):
            return name, text
    return f"{BASE64}{name}", b64encode(value).decode()


def header_of(name: str, text: str) -> tuple[str, bytes | None]:
    """Return the header of a property; a property that no header becomes stays as it is."""
    if name.startswith(NULL) and not text:
        return name.removeprefix(NULL), None
    if name.startswith(BASE64):
        with suppress(ValueError):
            value = b64decode(text, validate=True)
            if b64encode(value).decode() == text:
                return name.removeprefix(BASE64), value
    return name, text.encode()


def as_properties(headers: Column) -> Column:
    """Return the headers of Spark's Kafka source as the sink takes them: see `property_of`."""

    def made(header: Column) -> Column:
        name, value = header["key"], header["value"]
        is_text = F.is_valid_utf8(value.cast("string")) & ~_is_marked(name)
        return (
            F.when(value.isNull(), _pair(F.concat(F.lit(NULL), name), F.lit("").cast("binary")))
            .when(is_text, _pair(name, value))
            .otherwise(_pair(F.concat(F.lit(BASE64), name), _in_base64(value).cast("binary")))
        )

    return F.transform(headers, made)


def kafka_headers(headers: Column | str) -> Column:
    """Return the column `headers` of the source as Spark's Kafka sink takes it: see `header_of`."""

    def made(header: Column) -> Column:
        name, value = header["key"], header["value"]
        decoded = F.try_to_binary(value.cast("string"), F.lit("base64"))
        is_base64 = F.coalesce(_in_base64(decoded) == value.cast("string"), F.lit(False))
        is_null = name.startswith(NULL) & (F.octet_length(value) == 0)
        return (
            F.when(is_null, _pair(F.substr(name, _behind(NULL)), F.lit(None).cast("binary")))
            .when(
                name.startswith(BASE64) & is_base64,
                _pair(F.substr(name, _behind(BASE64)), decoded),
            )
            .otherwise(_pair(name, value))
        )

    return F.transform(headers, made)


def _in_base64(value: Column) -> Column:
    return F.translate(F.base64(value), "\r\n", "")  # Spark may be set to break lines.


def _is_marked(name: Column) -> Column:
    return name.startswith(BASE64) | name.startswith(NULL)


def _behind(mark: str) -> Column:
    return F.lit(len(mark) + 1)  # SQL counts letters from 1.


def _pair(name: Column, value: Column) -> Column:
    return F.struct(name.alias("key"), value.alias("value"))
