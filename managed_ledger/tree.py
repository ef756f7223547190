"""The id of the tree of logs in a metadata store: the record `/daybook/tree`.

Several trees may keep their logs in the same ledgers root, and have logs of the same name.  So each
ledger names the tree for which it was created, and no broker removes a ledger of another tree.

    {"treeId":"5d41...","version":1}
"""

from contextlib import suppress
from random import Random

import msgspec

from daybook.bookie.errors import MalformedRecordError
from daybook.wire.metadata.store import MetadataStore, OutcomeUnknownError, RecordExistsError

PATH = "/daybook/tree"
_VERSION = 1
_ID_CHARS_MAX = 64


class TreeRecord(msgspec.Struct, rename="camel"):
    tree_id: str
    version: int = _VERSION


async def tree_id(store: MetadataStore, rng: Random) -> str:
    """Return the id; the first caller draws it.  Raise MalformedRecordError, MetadataError."""
    drawn = msgspec.json.encode(TreeRecord(f"{rng.getrandbits(128):032x}"))
    while True:
        await store.sync(PATH)
        record = await store.get(PATH)
        if record is not None:
            return _parsed(record.value)
        # If the outcome is unknown, or another host was first, the next read has the record.
        with suppress(RecordExistsError, OutcomeUnknownError):
            await store.create(PATH, drawn, make_parents=True)


def _parsed(value: bytes) -> str:
    try:
        found = msgspec.json.decode(value, type=TreeRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRecordError(f"the record {PATH} cannot be parsed: {error}") from None
    if found.version != _VERSION or not 0 < len(found.tree_id) <= _ID_CHARS_MAX:
        raise MalformedRecordError(
            f"the record {PATH} was written by a newer Daybook: {value[:100]!r}"
        )
    return found.tree_id
