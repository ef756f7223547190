"""Every snippet of the README runs as it stands, on the addresses of a test cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README.read_text(), re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SHELL = [code for language, code in BLOCKS if language == "sh"]


def test_there_are_snippets() -> None:
    assert len(PYTHON) == 3
    assert len(SHELL) == 5


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_snippet(cluster: StandaloneProcess, tmp_path: Path, number: int) -> None:
    service = cluster.service_url
    code = PYTHON[number].replace("pulsar://localhost:6650", service)
    script = tmp_path / "snippet.py"
    if "greetings" in code and number == 2:  # the table that Spark shows has to exist
        code = (
            "import daybook\n"
            f"with daybook.blocking.connect({service!r}) as client:\n"
            "    with client.create_producer('greetings') as producer:\n"
            "        producer.send(b'hello', key='en')\n" + code
        )
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout or "68 65 6C 6C 6F" in done.stdout or ":" in done.stdout


def test_the_pipes(cluster: StandaloneProcess, tmp_path: Path) -> None:
    (code,) = [code for code in SHELL if "daybook produce" in code]
    bin_dir = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        env={
            **os.environ,
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "DAYBOOK_SERVICE_URL": cluster.service_url,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1000"


def test_the_commands_that_break_a_cluster(tmp_path: Path) -> None:
    """As the README says, on a directory of its own."""
    with StandaloneProcess(directory=tmp_path / "d", options=["--port", "0"]) as own:
        own.local("kill", "broker-1")
        parts = {part["name"]: part["state"] for part in own.local("status")["parts"]}
        assert parts["broker-1"] != "running"
        assert parts["bookie-1"] == "running"
