"""The options of the Spark sink.  The names are those of the source and of Spark's Kafka sink."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from daybook.clients.python.arguments import Compression, compression_type, topic_name

SINK_NAMES = ("service.url", "topic", "semantics", "valueFormat", "compression")
ValueFormat: TypeAlias = Literal["bytes", "json", "avro"]
_SPARKS_OWN = ("checkpointlocation", "queryname")  # Spark hands these over with those of a stream.


@dataclass(frozen=True, slots=True)
class SinkOptions:
    service_url: str
    topic: str | None  # None: each row names its topic
    compression: Compression
    value_format: ValueFormat = "bytes"


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options; their names are case-insensitive.  Raise ValueError with advice."""
    given = {name.lower(): value for name, value in options.items()}
    if streaming:
        given = {name: value for name, value in given.items() if name not in _SPARKS_OWN}
    unknown = sorted(set(given) - {name.lower() for name in SINK_NAMES})
    if unknown:
        raise ValueError(
            f"unknown option {unknown[0]!r} of the sink; there are: {', '.join(SINK_NAMES)}"
        )
    if not given.get("service.url"):
        raise ValueError("the option 'service.url' is missing")
    topic = given.get("topic")
    if topic is not None:
        topic_name(topic)
    _one_of(given, "semantics", ("at-least-once",))
    compression = given.get("compression", "none").strip().lower()
    compression_type(compression)
    assert compression in get_args(Compression)
    return SinkOptions(
        given["service.url"],
        topic,
        cast("Compression", compression),
        cast("ValueFormat", _one_of(given, "valueFormat", get_args(ValueFormat))),
    )


def _one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """Return the value of an option, which is the first of `values` if it is not given."""
    found = given.get(name.lower(), values[0]).strip().lower()
    if found not in values:
        raise ValueError(f"{name}={found!r} must be one of {', '.join(values)}")
    return found
