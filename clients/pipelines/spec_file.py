"""The file of a pipeline, for errors that name its line and key.  Pure.

FILE, line 12: [window.columns] hottest: ...
"""

import re
from dataclasses import dataclass
from pathlib import Path

Key = tuple[str, ...]
"""The tables around a key, and its name; empty for the file as a whole."""


class WrongKeyError(Exception):
    """The value of a key cannot be used."""

    def __init__(self, where: Key, says: str) -> None:
        super().__init__(f"{_shown(where)}: {says}")
        self.where = where
        self.says = says


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """The text of a file, and where it is."""

    path: Path
    text: str

    def at(self, error: WrongKeyError) -> str:
        """Return the words of an error, with the line."""
        line = line_of(self.text, error.where)
        place = f"{self.path}, line {line}" if line else str(self.path)
        return f"{place}: {error}" if error.where else f"{place}: {error.says}"


def _shown(where: Key) -> str:
    *tables, key = where or ("",)
    return f"[{'.'.join(tables)}] {key}" if tables else key


def line_of(text: str, where: Key) -> int | None:
    """Return the number of the line with a key, or else with the table that it belongs to."""
    table: Key = ()
    wanted = ".".join(where).lower()
    best, best_length = None, 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.fullmatch(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?", line):
            table = _parts(header[1])
            here = table
        elif key := re.match(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[\w-]+)*)\s*=", line):
            here = (*table, *_parts(key[1]))
        else:
            continue
        # A key with dots is written as one, or as tables: both are compared as one text.
        text_here = ".".join(here).lower()
        fits = f"{wanted}.".startswith(f"{text_here}.")
        if fits and len(text_here) > best_length:
            best, best_length = number, len(text_here)
    return best


def _parts(text: str) -> Key:
    return tuple(part.strip(" \t\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.]+", text))
