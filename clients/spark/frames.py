"""Load topics as a frame whose queries each push their own filters down: `daybook.spark.load`.

Spark 4.3 asks a Python source to plan a read, with the filters of a query, and keeps the answer in
an object that all scans of the loaded frame share.  The next query on the frame uses that answer
again, although its filters are others, and gets too few rows.  Two scans of one query, as in a join
of the frame with itself, also share one answer.

So the frame of `load` has a table of its own, which makes such an object for each scan.  The table
is a class of Java, because Spark asks it while it plans, in threads that know no Python.  Spark
ships the compiler (Janino, which compiles its own queries).
"""

# pyright: basic
# (the libraries underneath have no types)

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from daybook.clients.spark.options import parse_options, wants_push_down

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ENABLED = "spark.sql.python.filterPushdown.enabled"
_CLASS = "TableOfScans"
_JAVA = """
import java.util.HashMap;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public final class TableOfScans extends PythonTable {
    private final Frame frame;
    private final String name;
    private final StructType schema;

    public TableOfScans(
        UserDefinedPythonDataSource source,
        String name,
        StructType given,
        CaseInsensitiveStringMap options
    ) {
        this(new Frame(source, name), name, given, options);
    }

    private TableOfScans(
        Frame frame, String name, StructType given, CaseInsensitiveStringMap options
    ) {
        this(frame, name, given == null ? frame.inferSchema(options) : given);
    }

    private TableOfScans(Frame frame, String name, StructType schema) {
        super(frame, name, schema);
        this.frame = frame;
        this.name = name;
        this.schema = schema;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new PythonScanBuilder(new Scan(frame), name, schema, options);
    }

    /** The Python object of the frame, which is made once. */
    public static final class Frame extends PythonDataSourceV2 {
        private final UserDefinedPythonDataSource source;

        public Frame(UserDefinedPythonDataSource source, String name) {
            this.source = source;
            setShortName(name);
        }

        public UserDefinedPythonDataSource source() {
            return source;
        }

        public synchronized PythonDataSourceCreationResult getOrCreateDataSourceInPython(
            String name, CaseInsensitiveStringMap options, scala.Option schema
        ) {
            return super.getOrCreateDataSourceInPython(name, options, schema);
        }
    }

    /** What was planned for one scan. */
    public static final class Scan extends PythonDataSourceV2 {
        private final Frame frame;

        public Scan(Frame frame) {
            this.frame = frame;
        }

        public UserDefinedPythonDataSource source() {
            return frame.source();
        }

        public PythonDataSourceCreationResult getOrCreateDataSourceInPython(
            String name, CaseInsensitiveStringMap options, scala.Option schema
        ) {
            return frame.getOrCreateDataSourceInPython(name, options, schema);
        }
    }
}
"""

# The class in the Java process of each context: to load it again would fill its memory.
_tables: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()


def load(
    spark: "SparkSession", /, *, schema: "StructType | str | None" = None, **options: object
) -> "DataFrame":
    """Load topics, as `spark.read.format("daybook").options(...).load()` does.

    With `pushDown=True`, each query on the frame hands its filters to the source.  The bounds of
    the frame are then taken here.
    """
    from pyspark.sql.utils import to_str

    given = {name: text for name, each in options.items() if (text := to_str(each)) is not None}
    if not wants_push_down(given):
        reader = spark.read.format("daybook").options(**given)
        return (reader if schema is None else reader.schema(schema)).load()
    from daybook.clients.spark.push_down import BOUNDS, FrameBounds

    parsed = parse_options(given, streaming=False, by_load=True)
    _check_classic(spark)
    frame = FrameBounds.ask(parsed)
    return _frame(spark, {**given, BOUNDS: frame.encoded()}, schema)


def _check_classic(spark: "SparkSession") -> None:
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):
        raise ValueError(
            "pushDown=true needs a session with its own JVM, and this is one of Spark Connect:"
            " leave pushDown out, and name partitions by assign, and offsets or times by options"
        )


def _frame(
    spark: "SparkSession", options: dict[str, str], schema: "StructType | str | None"
) -> "DataFrame":
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from pyspark.sql.udf import _wrap_function

    from daybook.clients.spark.push_down import FrameDataSource

    jvm: Any = spark._jvm  # noqa: SLF001  PySpark has no other name for its Java process
    session: Any = spark._jsparkSession  # noqa: SLF001
    spark.conf.set(_ENABLED, "true")
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)  # Its settings count.
    python = jvm.org.apache.spark.sql.execution.datasources.v2.python
    source = python.UserDefinedPythonDataSource(_wrap_function(spark.sparkContext, FrameDataSource))
    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    columns = None if fields is None else session.parseDataType(fields.json())
    entries = jvm.java.util.HashMap()
    for name, text in options.items():
        entries.put(name, text)
    settings = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(entries)
    table = _new_table(spark, [source, FrameDataSource.name(), columns, settings])
    none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation.create(
        table, none, none, settings, none
    )
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, relation), spark)


def _new_table(spark: "SparkSession", values: list[Any]) -> Any:  # noqa: ANN401
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    arguments = gateway.new_array(gateway.jvm.java.lang.Object, len(values))
    for index, value in enumerate(values):
        arguments[index] = value
    return _table_class(spark).getConstructors()[0].newInstance(arguments)


def _table_class(spark: "SparkSession") -> Any:  # noqa: ANN401
    """Return the class of the table in the Java process of a session."""
    from py4j.protocol import Py4JJavaError
    from pyspark import __version__

    context = spark.sparkContext
    if context not in _tables:
        jvm: Any = spark._jvm  # noqa: SLF001
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        compiler.setParentClassLoader(loader)
        try:
            compiler.cook(_JAVA)
        except Py4JJavaError as error:
            raise RuntimeError(
                f"pushDown=true does not know Spark {__version__} (it was made for 4.3): leave it"
                f" out, and name partitions by assign, and offsets by options"
                f" ({error.java_exception.getMessage()})"
            ) from error
        _tables[context] = compiler.getClassLoader().loadClass(_CLASS)
    return _tables[context]
