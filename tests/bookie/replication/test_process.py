"""`python -m daybook.bookie.replication`: its settings, its output, its end."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real
COMMAND = [sys.executable, "-m", "daybook.bookie.replication"]


def run(**settings: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        **{f"DAYBOOK_AUTORECOVERY_{k.upper()}": v for k, v in settings.items()},
    }
    return subprocess.run(
        COMMAND, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_settings_that_make_no_sense_end_it_with_1() -> None:
    done = run(speed="1")
    assert done.returncode == 1
    assert "speed" in done.stderr


def test_without_zookeeper_it_ends_with_2() -> None:
    done = run(zookeeper="127.0.0.1:1", connect_timeout_s="0.5")
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr
