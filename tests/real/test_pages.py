"""Every snippet of the guide to topics runs as it stands, and prints what the page says."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import daybook
from clients.python import errors
from clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

PAGE = (Path(__file__).parents[2] / "docs" / "topics.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", PAGE, re.DOTALL)
SERVICE = "pulsar://localhost:6650"
ADMIN = "http://localhost:8080"
PATIENCE_S = 60
ERROR_ROW = re.compile(r"^\| `(\w+Error)` \| (no|unknown) \| ([\w ]+) \|", re.MULTILINE)
METHOD_ROWS = re.findall(
    r"^\| (?:topics|statistics|subscriptions|namespaces|brokers) \| (.*) \|$", PAGE, re.MULTILINE
)
OUTCOMES = {"no": errors.Outcome.NOT_APPLIED, "unknown": errors.Outcome.UNKNOWN}


def test_each_snippet_says_what_it_prints() -> None:
    assert len(SNIPPETS) == PAGE.count("```python")
    assert all(shown for _, shown in SNIPPETS)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_prints_what_the_page_says(
    cluster: StandaloneProcess, tmp_path: Path, number: int
) -> None:
    code, shown = SNIPPETS[number]
    assert SERVICE in code or ADMIN in code
    code = code.replace(SERVICE, cluster.service_url).replace(ADMIN, cluster.admin_url)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.stdout, done.returncode) == (shown, 0), done.stderr


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
