"""Files with keys, tokens and certificates; only the owner can read what is private.

A file is replaced in one step: whoever reads it gets the old content or the new one.
"""

import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from daybook.clients.cli.errors import UserError

_PRIVATE_FILE, _PUBLIC_FILE, _PRIVATE_DIRECTORY = 0o600, 0o644, 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_new(file: Path, content: bytes, *, public: bool = False) -> None:
    """Write a file that did not exist before, a private one unless it is `public`.

    Raise UserError.
    """
    try:
        _write(file, content, public)
    except FileExistsError:
        raise UserError(f"{file} exists already, and is not overwritten.") from None
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}.") from None


def replace(file: Path, content: bytes, *, public: bool = False, like: bool = False) -> None:
    """Write a file, or replace it in one step.  Raise UserError.

    With `like`, a file that is replaced goes on belonging to its owner, with the same mode: a
    server that reads it can read the new one, too.
    """
    new = file.with_name(f".{file.name}.new")
    try:
        if file.exists() and not file.is_file():
            raise UserError(f"{file} is not a regular file, and is not replaced.")
        new.unlink(missing_ok=True)  # A process was killed here.
        _write(new, content, public)
        if like and file.exists():
            before = file.stat()
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.chown(new, before.st_uid, before.st_gid)
            new.chmod(stat.S_IMODE(before.st_mode))
        new.replace(file)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}.") from None


@contextmanager
def exclusive(file: Path) -> Generator[None]:
    """Keep other commands from changing the file meanwhile; they wait.  Raise UserError.

    The lock is that of the directory, because the file itself is replaced.
    """
    try:
        directory = os.open(file.resolve().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)  # which ends the lock


def make_directory(directory: Path) -> None:
    """Make a private directory if there is none.  Raise UserError."""
    try:
        directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}.") from None


def read_private(file: Path) -> bytes:
    """Return the content of a private file.  Raise UserError if others may read it, too."""
    check_private(file)
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None


def check_private(path: Path) -> None:
    """Raise UserError if a file or directory is away, or other users may read or change it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    if mode & _OTHERS:
        right = _PRIVATE_DIRECTORY if path.is_dir() else _PRIVATE_FILE
        raise UserError(
            f"Other users of this machine may use {path} (mode {mode:o}), which holds secrets: run"
            f" `chmod {right:o} {path}`, and make its secrets anew if somebody has read them."
        )


def _write(file: Path, content: bytes, public: bool) -> None:
    mode = _PUBLIC_FILE if public else _PRIVATE_FILE
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(descriptor)
