"""The directory of an archive.

    DIR/manifest.json        replaced as a whole, after the files that it names are on the disk
    DIR/lock                 locked by the one process that writes
    DIR/day=YYYY-MM-DD/*.parquet

A file that no manifest names is litter of a task that failed; it is deleted after a day.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import time  # noqa: TID251  the ages of files are those of the file system

from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import Manifest, ManifestError, encode, parse

MANIFEST = "manifest.json"
_TEMPORARY = "manifest.json.new"
_LOCK = "lock"
KEPT_S = 24 * 3600.0
"""Readers that have read an older manifest may use a retired file for so long."""


def directory_of(text: str) -> Path:
    """Return the directory that a user names.  Raise ArchiveError for another scheme."""
    if "://" in text:
        raise ArchiveError(
            f"{text} is not a path: an archive is in a directory of a local or shared file system"
        )
    if not text.strip():
        raise ArchiveError("the directory of the archive is empty: name one")
    return Path(text).absolute()


def load(files: ArchiveFiles) -> Manifest | None:
    """Return the manifest; None if there is no archive yet.  Raise ArchiveError."""
    try:
        return parse(files.read(MANIFEST))
    except FileNotFoundError:
        return None
    except ManifestError as error:
        raise ArchiveError(
            f"{files.directory / MANIFEST} is damaged, restore it from a copy: {error}"
        ) from None


class ArchiveStore:
    """The one writer of an archive, from `open_store`."""

    def __init__(self, files: ArchiveFiles) -> None:
        self.files = files
        self.manifest = load(files)

    def replace(self, manifest: Manifest) -> Manifest:
        """Make a manifest the one of the archive, and return it with its generation.

        Its files are complete and on the disk.  Raise ArchiveError if another archiver has replaced
        the manifest meanwhile, which the lock excludes unless the file system has no working locks.
        """
        before = -1 if self.manifest is None else self.manifest.generation
        found = load(self.files)
        if (-1 if found is None else found.generation) != before:
            raise ArchiveError(
                f"another archiver has changed {self.files.directory / MANIFEST}: stop one of"
                " them, and run this one again"
            )
        manifest = replace(manifest, generation=before + 1)
        with self.files.create(_TEMPORARY, replaces=True) as file:
            file.write(encode(manifest))
            self.files.sync(file)
        self.files.rename(_TEMPORARY, MANIFEST)
        self.files.sync_directory()
        self.manifest = manifest
        return manifest

    def clean(self, now_s: float | None = None) -> list[str]:
        """Delete litter and retired files that are older than a day; return their paths."""
        if self.manifest is None:
            return []
        now_s = time() if now_s is None else now_s
        named = self.manifest.paths()
        deleted: list[str] = []
        for path, changed_s in self.files.parquet():
            if path not in named and changed_s < now_s - KEPT_S:
                self.files.delete(path)
                deleted.append(path)
        old = [each for each in self.manifest.retired if each.at_s < now_s - KEPT_S]
        if old:
            # The files go first: a crash leaves their names in the manifest, to be deleted again.
            for each in old:
                self.files.delete(each.path)
                deleted.append(each.path)
            kept = tuple(each for each in self.manifest.retired if each not in old)
            self.replace(replace(self.manifest, retired=kept))
        return deleted


@contextmanager
def open_store(directory: Path) -> Generator[ArchiveStore]:
    """Open an archive for writing.  Raise ArchiveError if another process writes to it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ArchiveError(f"{directory} cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(
                f"another process archives into {directory}: wait for its end, or stop it"
            ) from None
        yield ArchiveStore(ArchiveFiles(directory))
    finally:
        os.close(handle)
