"""Ask Kafka for the ids of topics, and keep them beside the checkpoint: see `kafka_record`.

Kafka's own client does it, in Spark's JVM: with the options of the source, and from the jars that
the source needs, too.  A client of Spark Connect has no JVM, so nothing is noticed there.
"""

# pyright: basic
# (the libraries underneath have no types)

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from daybook.clients.pipelines.kafka_record import FILE, KafkaTopics, checked, parse
from daybook.clients.pipelines.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX = "kafka."
_SOON = {"default.api.timeout.ms": "10000", "request.timeout.ms": "10000"}
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # Kafka before 2.8 tells this one for all topics


class KafkaCheckpoint:
    """The topics of Kafka that a pipeline reads, and the record beside its checkpoint."""

    def __init__(self, spark: "SparkSession", pipeline: Pipeline) -> None:
        # PySpark has no public names for its JVM.
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm  # noqa: SLF001
        self._gateway: Any = context._gateway  # noqa: SLF001
        self._configuration: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001
        self._options = {name.lower(): value for name, value in pipeline.source.items()}
        self._settings = {
            name[len(_PREFIX) :]: value
            for name, value in pipeline.source.items()
            if name.lower().startswith(_PREFIX)
        }
        self._checkpoint = pipeline.checkpoint
        self._known: KafkaTopics | None = None

    def begin(self, say: Callable[[str], None]) -> None:
        """Compare the record with Kafka before a run, and write what is new.

        Raise SpecError for a checkpoint of other topics, and Py4JError with Kafka's own errors.
        """
        now = self._ask({})
        text = self._read()
        if text is None:
            if self._has_offsets():
                say(
                    f"{self._checkpoint} is of an earlier release and does not say of which topics"
                    " of Kafka it is: they are taken for those that exist now."
                )
            known = KafkaTopics()
        else:
            known = parse(text, f"{self._checkpoint}/{FILE}")
        self._known = checked(known, now, self._checkpoint)
        if text is None or self._known != known:
            # Before the first offset: a checkpoint without a record is one of an earlier release.
            self._write(self._known.encode())

    def look(self) -> None:
        """Do as `check`, and go on if Kafka does not answer: the query needs it more."""
        with suppress(Py4JError):
            self.check()

    def check(self) -> None:
        """Raise SpecError if topics were made anew since `begin`; topics that are new are kept.

        Raise Py4JError with Kafka's own errors.
        """
        assert self._known is not None
        grown = checked(self._known, self._ask(_SOON), self._checkpoint)
        if grown != self._known:
            self._write(grown.encode())
            self._known = grown

    # -- Kafka

    def _ask(self, settings: Mapping[str, str]) -> KafkaTopics:
        properties = self._jvm.java.util.Properties()
        for name, value in {**self._settings, **settings}.items():
            properties.setProperty(name, value)
        admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        try:
            cluster = admin.describeCluster().clusterId().get()
            names = self._jvm.java.util.ArrayList()
            for name in self._names(admin):
                names.add(name)
            found = admin.describeTopics(names).allTopicNames().get()
            topics = {str(name): found.get(name).topicId().toString() for name in found.keySet()}
        finally:
            admin.close()
        return KafkaTopics(
            None if cluster is None else str(cluster),
            {name: None if id_ == _NO_ID else str(id_) for name, id_ in topics.items()},
        )

    def _names(self, admin: Any) -> list[str]:  # noqa: ANN401
        """Return the topics that the source reads now."""
        options: Mapping[str, str] = self._options
        if "subscribe" in options:
            return [name.strip() for name in options["subscribe"].split(",")]
        if "assign" in options:
            return list(json.loads(options["assign"]))
        pattern = self._jvm.java.util.regex.Pattern.compile(options["subscribepattern"])
        return [
            name for name in admin.listTopics().names().get() if pattern.matcher(name).matches()
        ]

    # -- files

    def _path(self, *names: str) -> tuple[Any, Any]:
        """Return a path below the checkpoint, and its file system."""
        text = "/".join((re.sub(r"/+$", "", self._checkpoint), *names))
        path = self._jvm.org.apache.hadoop.fs.Path(text)
        return path, path.getFileSystem(self._configuration)

    def _read(self) -> str | None:
        path, files = self._path(FILE)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode(errors="replace")
        finally:
            stream.close()

    def _has_offsets(self) -> bool:
        path, files = self._path("rows", "offsets")
        return bool(files.exists(path))

    def _write(self, text: str) -> None:
        """Replace the record in one step."""
        path, _ = self._path(FILE)
        new, files = self._path(f"{FILE}.new")
        stream = files.create(new, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        rename = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        how = self._gateway.new_array(rename, 1)
        how[0] = rename.OVERWRITE
        context = self._jvm.org.apache.hadoop.fs.FileContext
        context.getFileContext(path.toUri(), self._configuration).rename(new, path, how)
