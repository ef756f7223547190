"""The frames of a pipeline.

    messages          the columns of the source, and once more in the struct `message`
    parsed            the fields of the record in place of the columns; `message` stays
    main, letters     rows, and messages that are none, with the reason
    where, deduplicate, window, columns

A message that is no row is never left out in silence: it goes to the dead letters, or else the
query fails and names it.
"""

# pyright: basic
# (the libraries underneath have no types)

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import StructField, StructType

from daybook.clients.pipelines.spec import Parse, Pipeline, SpecError, Window
from daybook.clients.pipelines.spec_file import Key, WrongKeyError
from daybook.clients.spark.header_marks import as_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

READ = ("key", "keyIsBytes", "value", "topic", "partition", "offset", "timestamp", "eventTime")
_REASON, _TIME, _BY = "__reason", "__time", "__by"
_HEADERS = "array<struct<key:string,value:binary>>"
_RESERVED = ("message", _REASON, _TIME)
_NO_KAFKA = (
    "this Spark has no source for Kafka: add its jars, for example by --spark"
    " spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
)
_SCHEMA: Key = ("parse", "schema")
_ORIGIN = ("REAL_TOPIC", "REAL_PARTITION", "REAL_OFFSET", "DEAD_LETTER_REASON")


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames that the queries of a pipeline write."""

    rows: DataFrame
    dead_letters: DataFrame | None


def frames(spark: SparkSession, pipeline: Pipeline) -> Frames:
    """Build the frames.  Raise SpecError for steps that Spark refuses."""
    try:
        return _frames(spark, pipeline)
    except WrongKeyError as error:
        raise pipeline.refused(error) from None


def _frames(spark: SparkSession, pipeline: Pipeline) -> Frames:
    opened = _opened(spark, pipeline)
    if pipeline.time is not None:
        time = _expression(pipeline.time.column, ("time", "column")).cast("timestamp")
        opened = _with_columns(opened, {_TIME: time}, ("time", "column"))
        missing = F.when(F.col(_TIME).isNull(), F.lit("the time of the row is null"))
        opened = opened.withColumn(_REASON, F.coalesce(F.col(_REASON), missing))
    letters = None
    can_fail = pipeline.parse is not None or pipeline.time is not None
    if pipeline.dead_letters is not None:
        letters = _dead_letters(opened.where(F.col(_REASON).isNotNull()), pipeline)
    rows = opened
    if can_fail:
        is_row = F.col(_REASON).isNull()
        if letters is None:
            is_row = F.when(is_row, F.lit(True)).otherwise(_refusal().cast("boolean"))
        rows = rows.where(is_row)
    made = _steps(rows.drop(_REASON), pipeline)
    if pipeline.source_format == "kafka":
        made = _with_properties(made)
        letters = None if letters is None else _with_properties(letters)
    return Frames(made, letters)


def _with_properties(rows: DataFrame) -> DataFrame:
    """Return rows with headers that are properties, if they have headers as Kafka has them."""
    for field in rows.schema.fields:
        if field.name.lower() == "headers" and field.dataType.simpleString() == _HEADERS:
            return rows.withColumn(field.name, as_properties(F.col(field.name)))
    return rows


def _refusal() -> Column:
    """Return an expression that fails the query and names the message."""
    return F.raise_error(
        F.format_string(
            "offset %d of partition %d of %s is no row (%s): name a topic for such messages by"
            " dead_letters",
            F.col("message.offset"),
            F.col("message.partition"),
            F.col("message.topic"),
            F.col(_REASON),
        )
    )


# -- messages and records


def _messages(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    reader = spark.readStream.format(pipeline.source_format)
    if pipeline.source_format == "daybook":
        columns = ",".join((*READ, "properties"))
        return reader.options(**pipeline.source).option("columns", columns).load()
    with_headers = reader.options(**pipeline.source).option("includeHeaders", "true")
    try:
        found = with_headers.load()
    except Exception as error:
        if "Failed to find data source" in str(error):
            raise SpecError(_NO_KAFKA) from None
        raise WrongKeyError(("source",), first_line(error)) from None
    key, no_headers = F.col("key"), F.array().cast(_HEADERS)
    return found.select(
        "key",
        # Keys of Kafka are bytes.  Most of them are texts, which clients see as they are.
        F.when(key.isNotNull(), ~F.is_valid_utf8(key.cast("string"))).alias("keyIsBytes"),
        *("value", "topic", "partition", "offset", "timestamp"),
        F.col("timestamp").alias("eventTime"),
        F.coalesce(F.col("headers"), no_headers).alias("headers"),
    )


def _opened(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """Return the rows before the first step, with the reason of those that are none."""
    found = _messages(spark, pipeline)
    message = F.struct(*found.columns).alias("message")
    nothing = F.lit(None).cast("string").alias(_REASON)
    if pipeline.parse is None:
        return found.select("*", message, nothing)
    schema = _schema(pipeline.parse)
    record = _record(pipeline.parse, schema)
    found = found.select(record.alias("record"), message)
    fields = [F.col("record")[field.name].alias(field.name) for field in schema.fields]
    return found.select(*fields, "message", _reason(pipeline.parse, schema).alias(_REASON))


def _schema(parse: Parse) -> StructType:
    try:
        schema = StructType.fromDDL(parse.schema)
    except Exception as error:
        raise WrongKeyError(_SCHEMA, f"Spark does not understand it: {first_line(error)}") from None
    if not isinstance(schema, StructType):
        raise WrongKeyError(_SCHEMA, "write columns, such as 'sensor STRING, degrees DOUBLE'")
    for field in schema.fields:
        if field.name.lower() in _RESERVED:
            raise WrongKeyError(_SCHEMA, f"the name {field.name} is taken: name it otherwise")
    return schema


_BROKEN = "__broken"


def _record(parse: Parse, schema: StructType) -> Column:
    """Return the record of a message; null, or with text in `__broken`, if it does not parse."""
    open_schema = StructType([StructField(f.name, f.dataType, True) for f in schema.fields])
    if parse.format == "avro":
        from daybook.clients.pipelines.avro import avro_record

        return avro_record(parse, open_schema)(F.col("value"))
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _BROKEN,
        "allowSingleQuotes": "false",
        "allowNonNumericNumbers": "false",
    }
    return F.from_json(F.col("value").cast("string"), open_schema.add(_BROKEN, "string"), options)


def _is_one_value(text: Column) -> Column:
    """Return whether a text is one value of JSON: `from_json` ignores what is behind the first."""
    listed = F.from_json(F.concat(F.lit("["), text, F.lit(",0]")), "array<string>")
    return F.coalesce(F.size(listed) == F.lit(2), F.lit(False))


def _reason(parse: Parse, schema: StructType) -> Column:
    """Return why a message is no row; null if it is one."""
    value = F.col("message.value")
    reasons = F.when(value.isNull(), "the value is null, a tombstone")
    if parse.format == "json":
        text = value.cast("string")
        reasons = (
            reasons.when(~F.is_valid_utf8(text), "the value is not a text in UTF-8")
            .when(~F.ltrim(text).startswith("{"), "the value is not an object of JSON")
            .when(F.col(f"record.{_BROKEN}").isNotNull(), "the value is not JSON of the schema")
            .when(~_is_one_value(text), "the value has something behind its object")
        )
    reasons = reasons.when(F.col("record").isNull(), f"the value is not {_FORMS[parse.format]}")
    for field in schema.fields:
        if not field.nullable:
            missing = F.col("record")[field.name].isNull()
            reasons = reasons.when(missing, f"the field {field.name} is missing")
    return reasons


_FORMS = {"json": "JSON of the schema", "avro": "Avro of the schema"}


def _dead_letters(found: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Return the messages as they were, with properties that tell their origin and the reason."""
    texts = ("message.topic", "message.partition", "message.offset", _REASON)
    values = [F.col(name).cast("string") for name in texts]
    kept = ("key", "keyIsBytes", "value", "eventTime")
    if pipeline.source_format == "kafka":
        own = F.array(
            *(
                F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
                for name, value in zip(_ORIGIN, values, strict=True)
            )
        )
        told = F.concat(F.col("message.headers"), own).alias("headers")
    else:
        own = F.create_map(
            *(each for pair in zip(map(F.lit, _ORIGIN), values, strict=True) for each in pair)
        )
        others = F.map_filter("message.properties", lambda name, _: ~name.isin(*_ORIGIN))
        told = F.map_concat(others, own).alias("properties")
    return found.select(*(F.col(f"message.{name}").alias(name) for name in kept), told)


# -- steps


def _steps(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    if pipeline.where is not None:
        wanted, all_rows = _expression(pipeline.where, ("where",)), rows
        rows = _checked(("where",), lambda: all_rows.where(wanted))
    if pipeline.time is not None:
        rows = rows.withWatermark(_TIME, pipeline.time.late)
    if pipeline.deduplicate:
        names = [f"{_BY}{index}" for index in range(len(pipeline.deduplicate))]
        where = ("deduplicate", "by")
        keys = [_expression(text, where) for text in pipeline.deduplicate]
        keyed = _with_columns(rows, dict(zip(names, keys, strict=True)), where)
        rows = keyed.dropDuplicatesWithinWatermark(names).drop(*names)
    by: Sequence[str] = ()
    if pipeline.window is not None:
        rows, by = _aggregated(rows, pipeline.window)
    if pipeline.columns is not None:
        chosen = _named(pipeline.columns, ("columns",))
        found = rows
        for name, column in chosen.items():
            _checked(("columns", name), partial(found.select, column))
        return _checked(("columns",), lambda: found.select(*chosen.values()))
    return _default_columns(rows, pipeline, by)


def _aggregated(rows: DataFrame, window: Window) -> tuple[DataFrame, list[str]]:
    """Return one row for each window and key, and the names of the keys."""
    span = F.window(_TIME, window.size, window.slide or window.size)
    keys = [_expression(text, ("window", "by")) for text in window.by]
    names = _checked(("window", "by"), lambda: rows.select(*keys)).columns if keys else []
    where = ("window", "columns")
    sums = _named(window.columns, where)
    grouped = rows.groupBy(span.alias("window"), *keys)
    for name, column in sums.items():
        _checked((*where, name), partial(grouped.agg, column))
    found = _checked(where, lambda: grouped.agg(*sums.values()))
    ends = [F.col(f"window.{end}").alias(f"window_{end}") for end in ("start", "end")]
    return found.select(*ends, *names, *window.columns), names


def _default_columns(rows: DataFrame, pipeline: Pipeline, by: "Sequence[str]") -> DataFrame:
    """Return the columns of the sink for a pipeline that does not name them."""
    if pipeline.window is not None:
        value = F.struct(*rows.columns).alias("value")
        key = [F.col(by[0]).cast("string").alias("key")] if by else []
        return rows.select(*key, F.col("window_end").alias("eventTime"), value)
    properties = "headers" if pipeline.source_format == "kafka" else "properties"
    kept = [
        F.col(f"message.{name}").alias(name)
        for name in ("key", "keyIsBytes", "eventTime", properties)
    ]
    if pipeline.parse is None:
        return rows.select(*kept, F.col("message.value").alias("value"))
    fields = [name for name in rows.columns if name not in _RESERVED]
    return rows.select(*kept, F.struct(*fields).alias("value"))


def _named(texts: "Mapping[str, str]", where: Key) -> dict[str, Column]:
    return {name: _expression(text, (*where, name)).alias(name) for name, text in texts.items()}


def _expression(text: str, where: Key) -> Column:
    try:
        return F.expr(text)
    except Exception as error:
        raise WrongKeyError(where, f"{text!r} is not SQL: {first_line(error)}") from None


def _with_columns(rows: DataFrame, columns: dict[str, Column], where: Key) -> DataFrame:
    return _checked(where, lambda: rows.withColumns(columns))


def _checked(where: Key, make: "Callable[[], DataFrame]") -> DataFrame:
    """Return a frame whose columns Spark has resolved.  Raise WrongKeyError for wrong expressions.

    Spark reads the text of an expression when a frame is made of it, and not before.
    """
    try:
        made = make()
        made.schema  # noqa: B018  resolves the names
    except Exception as error:
        raise WrongKeyError(where, first_line(error)) from None
    return made


def first_line(error: BaseException | str) -> str:
    """Return the first sentence of an error of Spark, which has its plan in further lines."""
    return str(error).strip().split("\n")[0].split(" SQLSTATE:")[0].rstrip(".;")
