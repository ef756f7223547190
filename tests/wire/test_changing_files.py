"""Small files that are read again when they change."""

import os
from pathlib import Path

import pytest

from daybook.wire.changing_files import ChangingFile, read_stamped, stamp_of


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


@pytest.mark.parametrize("kind", ["pipe", "link to a terminal", "directory"])
def test_a_file_that_is_not_regular_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    """To open a pipe waits for its other end, for ever if there is none."""
    file = tmp_path / "users"
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "directory":
            file.mkdir()
        case _:
            file.symlink_to("/dev/ptmx")
    with pytest.raises(ValueError, match="not a regular file"):
        read_stamped(file, 3)


def test_a_file_that_is_being_written_counts_when_it_has_settled(tmp_path: Path) -> None:
    file, now = tmp_path / "number", 0.0
    file.write_bytes(b"1")
    found = ChangingFile(file, 9, int, settle_s=1.5, clock=lambda: now)
    for written, time_s, value in (
        (b"2", 1, 1),
        (b"", 2, 1),
        (b"22", 3, 1),
        (b"", 4, 1),
        (b"", 5, 22),
    ):
        now = time_s
        if written:
            file.write_bytes(written)
        found.look()
        assert found.value == value


def test_a_changed_file_has_a_new_value_and_a_wrong_one_keeps_the_former(tmp_path: Path) -> None:
    file, parsed = tmp_path / "number", list[bytes]()

    def parse(content: bytes) -> int:
        parsed.append(content)
        return int(content)

    file.write_bytes(b"1")
    found = ChangingFile(file, 9, parse)
    assert (found.value, found.look()) == (1, False)
    file.write_bytes(b"22")
    assert (found.look(), found.value, found.problem) == (True, 22, "")
    for wrong in (b"x", b"much too large"):
        file.write_bytes(wrong)
        assert (found.look(), found.value) == (False, 22)
        assert found.problem
    count = len(parsed)
    found.look()
    assert len(parsed) == count, "an unchanged file is not read again"
    file.unlink()
    assert (found.look(), found.value) == (False, 22)
    assert "No such file" in found.problem
    file.write_bytes(b"22")
    assert (found.look(), found.problem) == (False, "")


def test_a_file_that_may_be_read_again_is_found_by_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A permission changes neither the size of a file nor the time of its last change."""
    file = tmp_path / "number"
    file.write_bytes(b"1")
    found = ChangingFile(file, 9, int)
    file.write_bytes(b"22")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert not found.look()
    assert found.problem
    assert (found.look(), found.value) == (False, 1)
    assert (found.look(retry=True), found.value, found.problem) == (True, 22, "")


def test_a_file_that_cannot_be_used_at_first_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ChangingFile(tmp_path / "number", 9, int)
    (tmp_path / "number").write_bytes(b"x")
    with pytest.raises(ValueError, match="invalid literal"):
        ChangingFile(tmp_path / "number", 9, int)
