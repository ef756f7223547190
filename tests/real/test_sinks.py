"""The snippet of `docs/sinks.md` runs over real HTTP, and `daybook sinks` shows what it did."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import daybook
from daybook.clients.testing.standalone import StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

PAGE = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text()
ADMIN = '"http://localhost:8080,localhost:8081"'
(SNIPPET,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_snippet_writes_one_message_once(cluster: StandaloneProcess, tmp_path: Path) -> None:
    assert ADMIN in SNIPPET
    code = SNIPPET.replace(ADMIN, repr(cluster.admin_url)).replace("orders", "sink-orders")
    for _ in range(2):  # The second run is a replay of batch 0, which is thrown away.
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    with (
        daybook.blocking.connect(cluster.service_url) as client,
        client.create_reader("sink-orders", start="earliest") as reader,
    ):
        assert reader.receive().data == b"hello"
        assert not reader.has_message_available()
    shown = subprocess.run(
        [
            *(sys.executable, "-m", "daybook", "sinks", "show", "sink-orders-sink"),
            *("--admin-url", cluster.admin_url, "--output", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    state = json.loads(shown.stdout)
    assert (state["state"], state["batchId"], state["rows"]) == ("APPLIED", 0, 1)
