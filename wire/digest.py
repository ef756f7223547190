"""The digests that protect entries, and the keys that are derived from passwords.

    type     bytes  content
    CRC32        8  zlib's CRC-32 in the lower half, zeros above
    HMAC        20  HMAC-SHA1 with the key SHA-1("mac" + password)
    CRC32C       4  the Castagnoli CRC; the default
    DUMMY        0  nothing

A digest covers the header of an entry, then its payload, as one run of bytes; it does not cover
itself.  It does not depend on the protocol that carries the entry.  Clients verify it, bookies do
not.

The master key, SHA-1("ledger" + password), authorizes the use of a ledger.  Every add carries it to
every bookie; the password stays in the metadata of the ledger.
"""

import hashlib
import hmac
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from zlib import crc32

import crc32c as _crc32c

from daybook.wire.fields import U32, U64
from daybook.wire.transport import Buffer

MASTER_KEY_BYTES = 20


class DigestType(IntEnum):
    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


_SIZES = {
    DigestType.CRC32: 8,
    DigestType.HMAC: 20,
    DigestType.CRC32C: 4,
    DigestType.DUMMY: 0,
}


def crc32c(buffer: Buffer, value: int = 0) -> int:
    """Return the CRC-32C of `buffer`, continued from `value`."""
    return _crc32c.crc32c(buffer, value)


def master_key(password: bytes) -> bytes:
    # The protocol fixes SHA-1.
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def mac_key(password: bytes) -> bytes:
    return hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()


class Digester:
    """The digests of one ledger."""

    def __init__(self, digest_type: DigestType = DigestType.CRC32C, password: bytes = b"") -> None:
        self.digest_type = digest_type
        self.size = _SIZES[digest_type]
        self.compute = _digest_of(digest_type, password)
        """Return the digest of several buffers as one run of bytes."""


def _digest_of(digest_type: DigestType, password: bytes) -> Callable[..., bytes]:
    match digest_type:
        case DigestType.CRC32C:
            return _crc32c_digest
        case DigestType.CRC32:
            return _crc32_digest
        case DigestType.HMAC:
            return partial(_mac_digest, mac_key(password))
        case DigestType.DUMMY:
            return _no_digest


def _crc32c_digest(*buffers: Buffer) -> bytes:
    value = 0
    for buffer in buffers:
        value = _crc32c.crc32c(buffer, value)
    return U32.pack(value)


def _crc32_digest(*buffers: Buffer) -> bytes:
    value = 0
    for buffer in buffers:
        value = crc32(buffer, value)
    return U64.pack(value)


def _mac_digest(key: bytes, *buffers: Buffer) -> bytes:
    mac = hmac.new(key, digestmod="sha1")
    for buffer in buffers:
        mac.update(buffer)
    return mac.digest()


def _no_digest(*buffers: Buffer) -> bytes:
    return b""
