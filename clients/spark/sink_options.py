"""The options of the Spark sink.  The names are those of the source and of Spark's Kafka sink."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast, get_args

from daybook.clients.python.admin import parse_admin_url
from daybook.clients.python.arguments import Compression, compression_type, topic_name
from daybook.clients.python.tls import TlsOptions
from daybook.clients.spark.credential_options import (
    ANONYMOUS,
    CREDENTIAL_NAMES,
    QueryCredentials,
    parse_credentials,
)
from daybook.clients.spark.option_names import unknown_option
from daybook.clients.spark.tls_options import TLS_NAMES, parse_tls

ValueFormat: TypeAlias = Literal["bytes", "json", "avro"]
SINK_NAMES = (
    "service.url",
    "topic",
    "semantics",
    "valueFormat",
    "compression",
    "admin.url",
    "sinkName",
    "commitTimeout",
    *TLS_NAMES,
    *CREDENTIAL_NAMES,
)
_CHECKPOINT = "checkpointlocation"
_SPARKS_OWN = (_CHECKPOINT, "queryname")  # Spark hands these over with those of a stream.
_EXACTLY_ONCE = "exactly-once"
_COMMIT_TIMEOUT_S = "120"


@dataclass(frozen=True, slots=True)
class OnceOptions:
    """The options of an exactly-once write."""

    admin_url: str
    commit_timeout_s: float
    checkpoint: str  # empty for a batch
    sink_name: str | None  # None: the name comes from the query
    tls: TlsOptions | None = None
    credentials: QueryCredentials = ANONYMOUS


@dataclass(frozen=True, slots=True)
class SinkOptions:
    service_url: str
    topic: str | None  # None: each row names its topic
    compression: Compression
    value_format: ValueFormat = "bytes"
    once: OnceOptions | None = None  # None: at least once
    tls: TlsOptions | None = None
    credentials: QueryCredentials = ANONYMOUS


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options; their names are case-insensitive.  Raise ValueError with advice."""
    given = {name.lower(): value for name, value in options.items()}
    checkpoint = given.get(_CHECKPOINT, "")
    if streaming:
        given = {name: value for name, value in given.items() if name not in _SPARKS_OWN}
    unknown = sorted(set(given) - {name.lower() for name in SINK_NAMES})
    if unknown:
        raise ValueError(unknown_option(unknown[0], SINK_NAMES, " of the sink"))
    if not given.get("service.url"):
        raise ValueError("the option 'service.url' is missing")
    topic = given.get("topic")
    if topic is not None:
        topic_name(topic)
    semantics = _one_of(given, "semantics", ("at-least-once", _EXACTLY_ONCE))
    compression = given.get("compression", "none").strip().lower()
    compression_type(compression)
    assert compression in get_args(Compression)
    once = _once(given, checkpoint if streaming else None, wanted=semantics == _EXACTLY_ONCE)
    urls = [given["service.url"], *([] if once is None else [once.admin_url])]
    tls, credentials = parse_tls(given, *urls), parse_credentials(given)
    return SinkOptions(
        given["service.url"],
        topic,
        cast("Compression", compression),
        cast("ValueFormat", _one_of(given, "valueFormat", get_args(ValueFormat))),
        None if once is None else replace(once, tls=tls, credentials=credentials),
        tls,
        credentials,
    )


def _once(given: Mapping[str, str], checkpoint: str | None, *, wanted: bool) -> OnceOptions | None:
    """Return the options of an exactly-once write; `checkpoint` is None for a batch."""
    if not wanted:
        for option in ("admin.url", "sinkName", "commitTimeout"):
            if option.lower() in given:
                raise ValueError(f"the option {option!r} is for semantics={_EXACTLY_ONCE} only")
        return None
    if not given.get("admin.url"):
        raise ValueError(
            f"semantics={_EXACTLY_ONCE} needs the option 'admin.url', the HTTP ports of brokers:"
            " http://host:8080,host:8080"
        )
    parse_admin_url(given["admin.url"])
    if "topic" not in given:
        raise ValueError(
            f"semantics={_EXACTLY_ONCE} needs the option 'topic': all rows go to one topic"
        )
    name = given.get("sinkname")
    if checkpoint is None and name is not None:
        raise ValueError("the option 'sinkName' is for streams; a batch has a name of its own")
    if checkpoint == "":
        raise ValueError(
            f"semantics={_EXACTLY_ONCE} needs the option 'checkpointLocation', by which a copied"
            " checkpoint is noticed"
        )
    if name is not None and not name.strip():
        raise ValueError("the option 'sinkName' is empty")
    timeout = given.get("committimeout", _COMMIT_TIMEOUT_S)
    if not timeout.strip().isdigit() or int(timeout) == 0:
        raise ValueError(f"commitTimeout={timeout!r} is not a positive number of seconds")
    return OnceOptions(given["admin.url"], float(timeout), checkpoint or "", name)


def _one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """Return the value of an option, which is the first of `values` if it is not given."""
    found = given.get(name.lower(), values[0]).strip().lower()
    if found not in values:
        raise ValueError(f"{name}={found!r} must be one of {', '.join(values)}")
    return found
