"""Paths as in Apache BookKeeper, and ids that other clients could store."""

import pytest

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.registry.paths import LedgerPaths, check_bookie_id

PATHS = LedgerPaths()


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (1, "/ledgers/00/0000/L0001"),
        (12345, "/ledgers/00/0001/L2345"),
        (2147483646, "/ledgers/21/4748/L3646"),
        (2147483647, "/ledgers/000/0000/0021/4748/L3647"),
        (4294967301, "/ledgers/000/0000/0042/9496/L7301"),
        (9223372036854775807, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_ledger_paths(ledger_id: int, path: str) -> None:
    assert PATHS.ledger(ledger_id) == path


@pytest.mark.parametrize("bookie_id", ["readonly", "", "a/b", "a b", "ä"])
def test_ids_that_others_could_not_store_are_refused(bookie_id: str) -> None:
    with pytest.raises(MalformedRecordError):
        check_bookie_id(bookie_id)
