"""Segments that were removed on purpose: the file `REMOVED` beside them.

A gap in the log looks like a loss to whoever reads all of it, as a start does that finds no index.
So before a segment is removed, which is when everything in it that counts is durable elsewhere,
that is written down here; the file is replaced as a whole.  A start that finds a segment that is
named here finishes what was begun, and removes it.

    | `DAYBKREM` | version u32 | count u32 | gaps: first u64, mark u64, end u64 | checksum u32 |

A file that is damaged is taken for none: then gaps are losses, which is the safe side.
"""

import struct
from dataclasses import dataclass

from crc32c import crc32c

from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.records import UnsupportedVersionError

_HEAD = struct.Struct(">8sII")
_GAP = struct.Struct(">QQQ")
_CHECKSUM = struct.Struct(">I")
_MAGIC = b"DAYBKREM"
_VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """Positions from `first` up to `end` were removed.

    Below `mark` the log was durable when the segment at `first` began: what an earlier segment has
    behind that was torn, or was appended again.
    """

    first: int
    mark: int
    end: int


def removed_path(log_directory: str) -> str:
    return f"{log_directory}/REMOVED"


def with_gap(gaps: list[Gap], gap: Gap) -> list[Gap]:
    """Both, in order; those that touch are one."""
    merged: list[Gap] = []
    for each in sorted([*gaps, gap]):
        last = merged[-1] if merged else None
        if last is not None and each.first <= last.end:
            merged[-1] = Gap(last.first, last.mark, max(last.end, each.end))
        else:
            merged.append(each)
    return merged


def encode_gaps(gaps: list[Gap]) -> bytes:
    body = _HEAD.pack(_MAGIC, _VERSION, len(gaps))
    body += b"".join(_GAP.pack(gap.first, gap.mark, gap.end) for gap in gaps)
    return body + _CHECKSUM.pack(crc32c(body))


def decode_gaps(data: bytes) -> list[Gap]:
    """Empty if this is not a whole file of ours."""
    if len(data) < _HEAD.size + _CHECKSUM.size:
        return []
    body, (checksum,) = data[: -_CHECKSUM.size], _CHECKSUM.unpack(data[-_CHECKSUM.size :])
    magic, version, count = _HEAD.unpack_from(body)
    if magic != _MAGIC or checksum != crc32c(body):
        return []
    if version != _VERSION:
        raise UnsupportedVersionError(f"removed segments of version {version}, known: {_VERSION}")
    if len(body) != _HEAD.size + count * _GAP.size:
        return []
    return [Gap(*gap) for gap in _GAP.iter_unpack(body[_HEAD.size :])]


async def read_gaps(disk: Disk, log_directory: str) -> list[Gap]:
    try:
        return decode_gaps(await disk.read_file(removed_path(log_directory)))
    except FileNotFoundError:
        return []


async def write_gaps(disk: Disk, log_directory: str, gaps: list[Gap]) -> None:
    await disk.write_file(removed_path(log_directory), encode_gaps(gaps))
