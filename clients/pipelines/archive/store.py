"""The directory of an archive.

    DIR/manifest.json        replaced as a whole, after the files that it names are on the disk
    DIR/lock                 locked by the one process that writes
    DIR/day=YYYY-MM-DD/*.parquet
    DIR/day=YYYY-MM-DD/.*.parquet  files that are not whole, see `manifest.part_of`

A file that no manifest names is litter of a task that failed.  It is deleted after a day, if files
that the manifest names hold all its offsets.  A file that is not whole has nothing that a manifest
could name, so it is deleted after a day in any case.  If a task still writes it, which the lock
excludes unless the file system has no working locks, then this task fails when it gives the file
its name, and is repeated.
"""

import fcntl
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import time  # noqa: TID251  the ages of files are those of the file system

from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import Manifest, ManifestError, encode, parse
from daybook.clients.pipelines.archive.parquet import read_label

MANIFEST = "manifest.json"
_TEMPORARY = "manifest.json.new"
_LOCK = "lock"
KEPT_S = 24 * 3600.0
"""Readers that have read an older manifest may use a retired file for so long."""

_log = logging.getLogger("daybook.archive")


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
        """Delete litter and retired files that are older than a day; return their paths.

        A file that never became whole is deleted in any case.

        A file stays, and the log says why, if nobody knows that the archive has all its offsets.
        """
        if self.manifest is None:
            return []
        before_s = (time() if now_s is None else now_s) - KEPT_S
        named = self.manifest.paths()
        found = dict(self.files.parquet())
        deleted = [path for path, changed_s in self.files.parts() if changed_s < before_s]
        for path in deleted:
            self.files.delete(path)
        for path, changed_s in found.items():
            if path not in named and changed_s < before_s and self._is_held(path):
                self.files.delete(path)
                deleted.append(path)
        old = {each.path for each in self.manifest.retired if each.at_s < before_s}
        old = {path for path in old if path not in found or self._is_held(path)}
        if old:
            # The files go first: a crash leaves their names in the manifest, to be deleted again.
            for path in sorted(old & set(found)):
                self.files.delete(path)
                deleted.append(path)
            kept = tuple(each for each in self.manifest.retired if each.path not in old)
            self.replace(replace(self.manifest, retired=kept))
        return deleted

    def _is_held(self, path: str) -> bool:
        """Return True if the archive has all offsets of a file, so that the file may go."""
        why = self._why_kept(path)
        if why:
            _log.warning("%s is kept: %s", self.files.directory / path, why)
        return not why

    def _why_kept(self, path: str) -> str:
        """Return why an unnamed or retired file must stay; "" if it may go."""
        assert self.manifest is not None
        if not self.files.size(path):
            return ""
        with self.files.open(path) as source:
            label = read_label(source)
        if label is None:
            return "nobody can read what it holds; delete it if it is not needed"
        if label.archive != self.manifest.id:
            return f"it belongs to the archive {label.archive}, and not to this one"
        part = self.manifest.partitions.get(label.partition)
        if part is None or label.first < part.begin or label.next > part.end:
            return (
                f"it has the offsets {label.first} to {label.next} of partition"
                f" {label.partition}, and the manifest does not: restore the newest manifest, or"
                " archive these offsets again"
            )
        for each in part.overlapping(label.first, label.next):
            if self.files.size(each.path) != each.bytes:
                return f"{each.path}, which has offsets of it, is missing or damaged"
        return ""


@contextmanager
def open_store(directory: Path) -> Generator[ArchiveStore]:
    """Open an archive, or an empty directory, for writing.

    Raise ArchiveError if another process writes to it, or if it has files and no manifest.
    """
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
        files = ArchiveFiles(directory)
        store = ArchiveStore(files)
        if store.manifest is None and files.has_tables():
            raise ArchiveError(
                f"{directory} has files and no {MANIFEST}: restore the manifest from a copy, or"
                " name an empty directory"
            )
        yield store
    finally:
        os.close(handle)
