"""Damage to a bookie's synced data: bytes of its logs or indexes change on the platter.

A log rots only below its last mark.  A mark says that everything below it was durable once; damage
behind the last readable mark may be a torn write, which was never acknowledged.  No bookie can tell
these two apart, and none is asked to.
"""

from random import Random

from daybook.bookie.storage.records import (
    BATCH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_batch_header,
)
from tests.harness.disk import SECTOR_BYTES, Platter


def rot(platter: Platter, rng: Random, how: str, places: int) -> bool:
    """Damage data that is proved to have been synced; return False if there is none.

    `how`: flipped, zeroed, unreadable: some bytes in `places` places; cut, gone: one file.  An
    index rots in two ways: blocks: `places` keys cannot be read; files: it cannot be opened.
    """
    if how in ("blocks", "files"):
        return _rot_index(platter, rng, how, places)
    proved = _proved(platter)
    if how in ("cut", "gone"):
        whole = [path for path, size in proved.items() if size == len(platter.content(path))]
        if not whole:
            return False
        path = rng.choice(whole)
        if how == "gone":
            platter.forget(path)
        else:
            platter.truncate(path, rng.randrange(proved[path]))
        return True
    for _ in range(places if proved else 0):
        path = rng.choice(list(proved))
        _spoil(platter, rng, how, path, proved[path])
    return bool(proved)


def _rot_index(platter: Platter, rng: Random, how: str, places: int) -> bool:
    there = [index for index in platter.indexes_there().values() if index.stored_keys()]
    if not there:
        return False
    index = rng.choice(there)
    if how == "files":
        index.openable = False
    else:
        index.bad.update(rng.choices(index.stored_keys(), k=places))
    return True


def _spoil(platter: Platter, rng: Random, how: str, path: str, size: int) -> None:
    at = rng.randrange(size)
    sector = at - at % SECTOR_BYTES
    match how:
        case "flipped":
            platter.corrupt(path, at, bytes([platter.content(path)[at] ^ (1 << rng.randrange(8))]))
        case "zeroed":
            platter.corrupt(path, sector, bytes(min(SECTOR_BYTES, size - sector)))
        case "unreadable":
            if sector + SECTOR_BYTES <= size:
                platter.spoil(path, at)
        case _:
            raise AssertionError(how)


def _proved(platter: Platter) -> dict[str, int]:
    """Return for each file of a log how many bytes from its front lie below the last mark."""
    logs: dict[str, list[str]] = {}
    for path in platter.paths():
        if path.endswith(".log"):
            logs.setdefault(path.rpartition("/")[0], []).append(path)
    proved: dict[str, int] = {}
    for paths in logs.values():
        mark = max(_last_mark(platter.content(path), _first(path)) for path in paths)
        for path in paths:
            size = min(mark - _first(path), len(platter.content(path)))
            if size > 0:
                proved[path] = size
    return proved


def _first(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(".log"))


def _last_mark(content: bytes, first: int) -> int:
    """Return the last mark before the first batch that does not parse; 0 without any."""
    header = SegmentHeader.decode(content)
    at, mark = SEGMENT_HEADER_BYTES, 0
    while header is not None:
        batch = decode_batch_header(header.creation_id, first + at, content[at:])
        if batch is None:
            break
        mark = max(mark, batch.durable)
        at += BATCH_HEADER_BYTES + batch.size
    return mark
