"""What a disk may do instead of what it is asked: data, and the file that says which it is now.

A mood is written by whoever breaks the disk, and read, again and again, by the bookie on it.
"""

from pathlib import Path

import msgspec


class Mood(msgspec.Struct, frozen=True):
    """All of it holds as long as the file says so."""

    no_room: bool = False  # little is left, as far as one can see
    full: bool = False  # nothing can be written
    torn: bool = False  # of what is written a part gets there, then there is an error
    read_errors: float = 0.0  # the share of reads that fail
    write_s: float = 0.0  # what each write takes more
    stuck: bool = False  # nothing comes back


FINE = Mood()


class MoodFile:
    """A file that says it; none: the disk is fine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None  # which version of the file
        self._mood = FINE

    def read(self) -> Mood:
        """As it is now."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino)
            if seen != self._seen:
                self._mood = msgspec.json.decode(self._path.read_bytes(), type=Mood)
                self._seen = seen
        except FileNotFoundError:
            self._mood, self._seen = FINE, None
        return self._mood

    def write(self, mood: Mood) -> None:
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(mood))
        new.rename(self._path)
