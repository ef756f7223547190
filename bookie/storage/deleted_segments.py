"""Segments that were deleted on purpose: the file `REMOVED` beside them.

A gap in the log looks like a loss to a start that reads all of the log.  So compaction notes a
segment in this file before it deletes it, after all live records of the segment are durable
elsewhere.  The file is replaced as a whole.  A start that finds a segment named here deletes it.

    | `DAYBKREM` | version u32 | count u32 | gaps: first u64, mark u64, end u64 | checksum u32 |

A damaged file is ignored: gaps then count as losses, which is safe.
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
    """The segments from position `first` up to `end` were deleted.

    The log was durable below `mark` when the segment at `first` began.  Bytes behind the mark in an
    earlier segment were torn or were appended again.
    """

    first: int
    mark: int
    end: int


def removed_path(log_directory: str) -> str:
    return f"{log_directory}/REMOVED"


def with_gap(gaps: list[Gap], gap: Gap) -> list[Gap]:
    """Return the gaps with one more, in order; adjacent gaps become one."""
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
    """Return the gaps; none if the file is not whole."""
    if len(data) < _HEAD.size + _CHECKSUM.size:
        return []
    body, (checksum,) = data[: -_CHECKSUM.size], _CHECKSUM.unpack(data[-_CHECKSUM.size :])
    magic, version, count = _HEAD.unpack_from(body)
    if magic != _MAGIC or checksum != crc32c(body):
        return []
    if version != _VERSION:
        raise UnsupportedVersionError(f"REMOVED of version {version}, known: {_VERSION}")
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
