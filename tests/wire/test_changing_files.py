"""Small files that are read again when they change."""

import os
from pathlib import Path

import pytest

from daybook.wire.changing_files import read_stamped, stamp_of


def test_a_file_that_is_written_or_replaced_has_another_stamp(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_bytes(b"one")
    stamp, content = read_stamped(file, 3)
    assert content == b"one"
    assert stamp_of(file) == stamp
    file.write_bytes(b"other")
    assert stamp_of(file) != stamp
    (tmp_path / "new").write_bytes(b"one")
    found = os.stat(file)
    os.utime(tmp_path / "new", ns=(found.st_atime_ns, found.st_mtime_ns))
    before = stamp_of(file)
    (tmp_path / "new").rename(file)
    assert stamp_of(file) != before


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "users").write_bytes(b"four")
    with pytest.raises(ValueError, match="too large"):
        read_stamped(tmp_path / "users", 3)
    with pytest.raises(OSError, match="missing"):
        read_stamped(tmp_path / "missing", 3)
