"""The partitions of a column of keys: all keys are hashed at once.

The hash is that of `protocol.routing`, Murmur3 of 32 bits.  Its blocks of four bytes are taken from
all keys together, so a key costs little, also if no key comes twice.
"""

# pyright: basic, reportAttributeAccessIssue=false
# (the libraries underneath have no types)

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from daybook.clients.python.protocol.routing import Router
from daybook.clients.spark.row_messages import byte_sizes, offsets_and_data

_Numbers: TypeAlias = np.ndarray[Any, Any]

_BLOCK = 4
_BLOCK_KEPT = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)  # the bytes that a tail has
_KEY_BYTES_MAX = 64  # A few long keys would cost a turn of the loop for each of their blocks.


def partitions_of_keys(keys: pa.Array, router: Router) -> pa.Array:
    """Return the partition of each key (large_binary), as `router.for_key`; null for null."""
    absent = keys.is_null().to_numpy(zero_copy_only=False) if keys.null_count else None
    if absent is not None:
        keys = keys.fill_null(b"")
    sizes = byte_sizes(keys)
    is_long = sizes > _KEY_BYTES_MAX
    found = (_murmur3(keys, np.where(is_long, 0, sizes)) & 0x7FFFFFFF) % router.partitions
    for row in np.flatnonzero(is_long):
        found[row] = router.for_key(keys[int(row)].as_py())
    return pa.array(found.astype(np.int32), mask=absent)


def _murmur3(keys: pa.Array, sizes: _Numbers) -> _Numbers:
    """Return the hash of the first `sizes` bytes of each key: `routing.murmur3`."""
    bounds, data = offsets_and_data(keys)
    # The tail of a key is read as a whole block, also at the end of the data.
    padded = bytes(data[bounds[0] : bounds[-1]]) + bytes(_BLOCK)
    blocks = np.ndarray(len(padded) - _BLOCK + 1, "<u4", padded, strides=(1,))  # at each byte
    at = bounds[:-1] - bounds[0]
    value: _Numbers = np.zeros(len(keys), np.uint32)
    for end in range(_BLOCK, int(sizes.max()) + 1, _BLOCK):
        rows = np.flatnonzero(sizes >= end)
        mixed = value[rows] ^ _scrambled(blocks[at[rows] + (end - _BLOCK)])
        value[rows] = (mixed << 13 | mixed >> 19) * 5 + 0xE6546B64
    tail = sizes % _BLOCK
    value ^= _scrambled(blocks[at + (sizes - tail)] & _BLOCK_KEPT[tail])
    value ^= sizes.astype(np.uint32)
    value = (value ^ value >> 16) * 0x85EBCA6B
    value = (value ^ value >> 13) * 0xC2B2AE35
    value ^= value >> 16
    return value


def _scrambled(blocks: _Numbers) -> _Numbers:
    blocks = blocks * 0xCC9E2D51
    return (blocks << 15 | blocks >> 17) * 0x1B873593
