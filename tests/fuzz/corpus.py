"""Inputs worth keeping: a few small ones for each target in the repository, and those of a search.

    corpus/<target>/      in the repository: each reaches lines that no seed and no other one does
    .fuzz/<target>/       inputs found by searches so far, at the top of the repository; not kept
    crashes/<target>/     inputs that break a promise, with the broken promise; not kept

An input reaches something new if it executes a new pair of successive lines in our code.
"""

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.bounds import FindingError, examine
from tests.fuzz.target import Target

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CORPUS = HERE / "corpus"
CRASHES = HERE / "crashes"
WORK = ROOT / ".fuzz"
FILES_MAX = 24
_PACKAGES = str(ROOT / "daybook")


def stored(target: Target) -> dict[str, bytes]:
    """Return the inputs in the repository, by file name."""
    directory = CORPUS / target.name
    files = sorted(directory.iterdir()) if directory.is_dir() else []
    return {file.name: file.read_bytes() for file in files}


def beginnings(target: Target) -> dict[str, bytes]:
    """Return seeds and stored inputs."""
    return {**target.seeds(), **stored(target)}


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def work_directory(target: Target) -> Path:
    """Return the directory where a search keeps its inputs, with the beginnings in it."""
    directory = WORK / target.name
    directory.mkdir(parents=True, exist_ok=True)
    for data in beginnings(target).values():
        (directory / name_of(data)).write_bytes(data)
    return directory


def save(target: Target) -> int:
    """Copy a search's inputs that reach something new into the repository."""
    directory = CORPUS / target.name
    directory.mkdir(parents=True, exist_ok=True)
    found = [file.read_bytes() for file in sorted(work_directory(target).iterdir())]
    kept = distil(target, found)
    for file in directory.iterdir():
        file.unlink()
    for data in kept:
        (directory / name_of(data)).write_bytes(data)
    return len(kept)


def distil(target: Target, inputs: Iterable[bytes], files_max: int = FILES_MAX) -> list[bytes]:
    """Return inputs that reach more than the seeds, the smallest first: the best `files_max`."""
    reached: set[object] = set()
    for seed in target.seeds().values():
        reached |= reach(target, seed)
    useful: list[tuple[int, bytes]] = []
    for data in sorted(set(inputs), key=lambda each: (len(each), each)):
        new = reach(target, data) - reached
        if new:
            reached |= new
            useful.append((len(new), data))
    best = sorted(useful, key=lambda each: -each[0])[:files_max]
    return [data for _, data in best]


def reach(target: Target, data: bytes) -> set[object]:
    """Return the pairs of lines that the input executes."""
    pairs: set[object] = set()

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGES):
            return None
        before = 0

        def on_line(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal before
            pairs.add((code, before, frame.f_lineno))
            before = frame.f_lineno
            return on_line

        return on_line

    sys.settrace(on_call)
    try:
        examine(target, data)
    except FindingError:
        pass
    finally:
        sys.settrace(None)
    return pairs


def keep_crash(target: Target, data: bytes, finding: FindingError) -> Path:
    """Write the input and the broken promise; the text has the command to repeat it."""
    directory = CRASHES / target.name
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{name_of(data)}.bin"
    file.write_bytes(data)
    file.with_suffix(".txt").write_text(
        f"{finding.signature}\n\nto repeat: {repeat_command(target, file)}\n\n{finding.detail}\n"
    )
    return file


def repeat_command(target: Target, file: Path) -> str:
    return f"python -m tests.fuzz {target.name} --repeat {file.relative_to(ROOT)}"
