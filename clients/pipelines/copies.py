"""The target of a copy: it exists before the first batch, with the partitions that it needs."""

from collections.abc import Mapping

from daybook.clients.pipelines.spec import Pipeline, SpecError
from daybook.clients.python import blocking
from daybook.clients.python.arguments import topic_name
from daybook.clients.python.errors import ConflictError, TopicNotFoundError
from daybook.clients.python.tls import TlsOptions
from daybook.clients.spark.bookie_options import uses_tls
from daybook.clients.spark.credential_options import QueryCredentials, parse_credentials
from daybook.clients.spark.tls_options import parse_tls
from daybook.clients.spark.zookeeper_options import wants_tls


def prepare_target(pipeline: Pipeline, *, same_partitions: bool) -> str:
    """Create the target with the partitions of the source, if it does not exist.

    Return a sentence on what is copied where.  Raise SpecError if source and target do not fit, and
    BrokerError.
    """
    target = topic_name(pipeline.sink["topic"]).full
    there = _partitions(pipeline.sink, target)
    if pipeline.source_format == "kafka":
        source = pipeline.source["subscribe"]
        if there is None and same_partitions:
            raise SpecError(
                f"{target} does not exist, and has to have as many partitions as the topic of"
                f" Kafka: create it with `daybook topics create {pipeline.sink['topic']}"
                " --partitions NUMBER`, or copy with --partition-by key"
            )
        return f"Copying {source} of Kafka to {target}."
    source = topic_name(pipeline.source["topic"]).full
    here = _partitions(pipeline.source, source)
    if here is None:
        raise SpecError(f"{source} does not exist")
    if source == target and pipeline.source["service.url"] == pipeline.sink["service.url"]:
        raise SpecError(f"{source} would be copied to itself, without an end: name another target")
    if there is None:
        there = _create(pipeline, target, here)
    if same_partitions and max(1, here) != max(1, there):
        raise SpecError(
            f"{source} has {max(1, here)} partitions, and {target} has {max(1, there)}: copy with"
            " --partition-by key, which keeps the order of each key, or create a target with as"
            " many partitions"
        )
    return f"Copying {source} to {target}, {max(1, here)} partitions to {max(1, there)}."


def _partitions(options: Mapping[str, str], topic: str) -> int | None:
    """Return the number of partitions; 0 for a topic without, None if it does not exist."""
    tls, who = _security(options)
    with blocking.connect(
        options["service.url"], tls=tls, token=who.token, basic=who.basic
    ) as client:
        try:
            return client.partitions(topic, create=False)
        except TopicNotFoundError:
            return None


def _create(pipeline: Pipeline, target: str, partitions: int) -> int:
    tls, who = _security(pipeline.sink)
    with blocking.connect_admin(
        pipeline.sink["admin.url"], tls=tls, token=who.token, basic=who.basic
    ) as admin:
        try:
            admin.create_topic(target, partitions=partitions)
        except ConflictError:  # Somebody has created it meanwhile.
            found = _partitions(pipeline.sink, target)
            return partitions if found is None else found
    return partitions


def _security(options: Mapping[str, str]) -> tuple[TlsOptions | None, QueryCredentials]:
    given = {name.lower(): value for name, value in options.items()}
    for_others = uses_tls(given) or wants_tls(given)
    tls = parse_tls(given, options["service.url"], for_others=for_others)
    return tls, parse_credentials(given)
