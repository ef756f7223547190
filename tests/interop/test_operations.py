"""Every operation of Apache Pulsar's Python, Java and Go clients against our broker.

Each client runs all its operations in one process.  `docs/interop.md` has the table;
`tests/test_operations_page.py` keeps it true.
"""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from daybook.clients.testing.standalone import StandaloneProcess
from tests.interop.apache import go_client, pulsar_client_here
from tests.interop.letters import SOURCE
from tests.interop.operations import Operations, named
from tests.interop.operations_table import go_names, java_names

pytestmark = pytest.mark.interop

JAVA = SOURCE.with_name("Operations.java")
_PATIENCE_S = 300.0
GROWING = "partitions that grow"  # Python's client looks for them once a minute: this comes last


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(bookies=1, brokers=1) as running:
        yield running


@pytest.fixture(scope="module")
def python(cluster: StandaloneProcess) -> Iterator[Operations]:
    operations = Operations(cluster.service_url, cluster.admin_url)
    yield operations
    operations.close()


def run(command: Sequence[str], log: Path) -> dict[str, str]:
    """Run a client's program, and return what it says of each operation."""
    with log.open("w") as errors:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    *lines, last = done.stdout.splitlines() or [""]
    assert last == "done", (lines[-1:], last, log.read_text()[-2000:])
    return dict(
        line.rsplit(": ", 1) if line.endswith(": ok") else line.split(": ", 1) for line in lines
    )


def check(said: dict[str, str], names: Sequence[str]) -> None:
    assert {name: found for name, found in said.items() if found != "ok"} == {}
    assert sorted(said) == sorted(names)


@pytest.mark.parametrize("name", [name for name in named() if name != GROWING])
def test_python(python: Operations, name: str) -> None:
    named()[name](python, f"python-{name.replace(' ', '-')}")


def test_java(cluster: StandaloneProcess, tmp_path: Path) -> None:
    where = cluster.service_url, cluster.admin_url
    command = pulsar_client_here().command(tmp_path, str(JAVA), *where)
    check(run(command, tmp_path / "java.txt"), java_names())


def test_go(cluster: StandaloneProcess, tmp_path: Path) -> None:
    client = go_client()
    if client is None:
        pytest.skip("the Go client was not built: `sh tests/interop/fetch_go.sh` says why")
    command = [str(client), "operations", cluster.service_url, cluster.admin_url]
    check(run(command, tmp_path / "go.txt"), go_names())


def test_python_finds_partitions_that_grow(python: Operations) -> None:
    named()[GROWING](python, "python-growing")
