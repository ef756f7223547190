"""Files with keys that commands replace."""

import fcntl
import os
from pathlib import Path

import pytest

from daybook.clients.cli.key_files import exclusive


def test_a_command_that_changes_a_file_keeps_others_out(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        with exclusive(tmp_path / "users"), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)
