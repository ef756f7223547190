"""Every snippet of the guides runs as it stands, and prints the output on its page."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import daybook
from daybook.clients.python import errors
from daybook.clients.spark.options import _NAMES as OPTION_NAMES
from daybook.clients.spark.row_columns import _NAMES as SINK_COLUMNS
from daybook.clients.spark.schema import TYPES, Columns
from daybook.clients.spark.sink_options import SINK_NAMES
from daybook.clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "topics.md").read_text()
SPARK = (DOCS / "spark.md").read_text()
SPARK_WRITE = (DOCS / "spark_write.md").read_text()
SERVICE = "pulsar://localhost:6650"
ADMIN = "http://localhost:8080"
PATIENCE_S = 60
SPARK_PATIENCE_S = 300
SPARK_ENVIRON = {
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # makes Spark start faster
}
ERROR_ROW = re.compile(r"^\| `(\w+Error)` \| (no|unknown) \| ([\w ]+) \|", re.MULTILINE)
METHOD_ROWS = PAGE.partition("\n| what | methods |\n")[2].partition("\n\n")[0].splitlines()
OUTCOMES = {"no": errors.Outcome.NOT_APPLIED, "unknown": errors.Outcome.UNKNOWN}


def python_snippets(page: str) -> list[tuple[str, str]]:
    """Return the code of each snippet, and its output."""
    return re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", page, re.DOTALL)


COMING_FROM = (DOCS / "coming_from.md").read_text()
SNIPPETS = python_snippets(PAGE) + python_snippets(COMING_FROM)


def run(
    code: str, directory: Path, *, timeout_s: float, environ: dict[str, str] | None = None
) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_snippet_says_what_it_prints() -> None:
    assert len(SNIPPETS) == (PAGE + COMING_FROM).count("```python")
    assert all(shown for _, shown in SNIPPETS)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_prints_what_the_page_says(
    cluster: StandaloneProcess, tmp_path: Path, number: int
) -> None:
    code, shown = SNIPPETS[number]
    assert SERVICE in code or ADMIN in code
    code = code.replace(SERVICE, cluster.service_url).replace(ADMIN, cluster.admin_url)
    assert run(code, tmp_path, timeout_s=PATIENCE_S) == shown


def test_the_table_of_errors_has_every_class_and_is_true() -> None:
    rows = {name: (outcome, remedy) for name, outcome, remedy in ERROR_ROW.findall(PAGE)}
    classes = {
        name: each
        for name, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.BrokerError) and each is not errors.BrokerError
    }
    assert set(rows) == set(classes)
    for name, (outcome, remedy) in rows.items():
        assert classes[name].outcome is OUTCOMES[outcome], name
        assert classes[name].remedy is errors.Remedy[remedy.upper().replace(" ", "_")], name


def test_the_table_of_administration_has_every_method() -> None:
    named = {name for row in METHOD_ROWS for name in re.findall(r"`(\w+)`", row)}
    methods = {name for name in vars(daybook.admin.Admin) if not name.startswith("_")}
    assert named == methods


def test_the_guide_to_spark_prints_what_it_says(cluster: StandaloneProcess, tmp_path: Path) -> None:
    """The snippets of both pages continue each other, in one session."""
    snippets = python_snippets(SPARK + SPARK_WRITE)
    assert len(snippets) == (SPARK + SPARK_WRITE).count("```python")
    code = "".join(code for code, _ in snippets).replace(SERVICE, cluster.service_url)
    code = code.replace(ADMIN, cluster.admin_url)
    environ = {**os.environ, **SPARK_ENVIRON}
    printed = run(code, tmp_path, timeout_s=SPARK_PATIENCE_S, environ=environ)
    assert printed == "".join(shown for _, shown in snippets)
    assert (tmp_path / "archive" / "checkpoint" / "offsets").is_dir()


RUN_SQL = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
for statement in sys.stdin.read().split(";"):
    found = spark.sql(statement)
    if found.columns:
        found.show(truncate=False)
"""


def test_the_sql_of_the_guide_to_spark_prints_what_it_says(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    """The statements continue each other, in a session that finds the installed Daybook."""
    found = re.findall(r"```sql\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", SPARK, re.DOTALL)
    assert len(found) == SPARK.count("```sql") == 7
    statements = ";".join(sql for sql, _ in found).replace(SERVICE, cluster.service_url)
    done = subprocess.run(
        [sys.executable, "-c", RUN_SQL],
        input=statements,
        cwd=tmp_path,
        env={**os.environ, **SPARK_ENVIRON},
        capture_output=True,
        text=True,
        timeout=SPARK_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(shown for _, shown in found)


def test_the_guide_to_spark_has_every_option_and_every_column() -> None:
    options = re.findall(
        r"^\| `([\w.]+)` \| [^|]+ \| (?:both|batch|stream) \|", SPARK, re.MULTILINE
    )
    assert tuple(options) == OPTION_NAMES
    columns = re.findall(r"^\| `(\w+)` \| ([\w<>,:]+) \| [^|]+ \|$", SPARK, re.MULTILINE)
    assert ", ".join(f"{name} {kind}" for name, kind in columns) == Columns(tuple(TYPES)).ddl


def test_the_guide_to_the_spark_sink_has_every_option_and_every_column() -> None:
    parts = dict(part.split("\n", 1) for part in SPARK_WRITE.split("\n## ")[1:])
    rows = re.compile(r"^\| `([\w.]+)` \|", re.MULTILINE)
    assert tuple(rows.findall(parts["Columns of a row"])) == SINK_COLUMNS
    assert tuple(rows.findall(parts["Options of the sink"])) == SINK_NAMES
