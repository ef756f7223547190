"""Cookies: the text that other versions read, and that no cookie is overwritten."""

import random

import pytest

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.registry.cookies import (
    Cookie,
    create_cookie,
    delete_cookie,
    known_bookies,
    read_cookie,
    renew_cookie,
    update_cookie,
)
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.metadata.memory import MemorySession
from daybook.wire.metadata.store import RecordExistsError, VersionConflictError

PATHS = LedgerPaths()
COOKIE = Cookie("10.0.0.1:3181", ["/j"], ["/d0", "/d1"], "7a1f")


def test_cookie_text() -> None:
    assert COOKIE.encode() == (
        b'5\nbookieHost: "10.0.0.1:3181"\njournalDir: "/j"\n'
        b'ledgerDirs: "2\\t/d0\\t/d1"\ninstanceId: "7a1f"\n'
    )
    decoded = Cookie.decode(COOKIE.encode())
    assert decoded.encode() == COOKIE.encode()
    assert decoded.ledger_directories == ("/d0", "/d1")
    with_index = Cookie("b", ["/j"], ["/d"], "i", ["/x"])
    assert Cookie.decode(with_index.encode()).index_directories == ("/x",)


def test_old_and_broken_cookies() -> None:
    old = Cookie.decode(b"3\nb1:3181\n/j\n1\t/d0\n")
    assert (old.bookie_id, old.instance_id) == ("b1:3181", "")
    for bad in (b"", b"6\nx", b"5\nnonsense", b"3\nb\n/j\n2\t/d0", b"\xff\xff", b"5\n"):
        with pytest.raises(MalformedRecordError):
            Cookie.decode(bad)


async def test_cookies_are_kept_by_version(store: MemorySession) -> None:
    await ensure_layout(store, PATHS, random.Random(1))
    assert await read_cookie(store, PATHS, COOKIE.bookie_id) is None
    await create_cookie(store, PATHS, COOKIE)
    await create_cookie(store, PATHS, COOKIE)
    assert await known_bookies(store, PATHS) == ["10.0.0.1:3181"]
    stored = await read_cookie(store, PATHS, COOKIE.bookie_id)
    assert stored is not None
    assert stored.version == 0
    other = Cookie(COOKIE.bookie_id, ["/j"], ["/d0"], "7a1f")
    with pytest.raises(RecordExistsError):
        await create_cookie(store, PATHS, other)
    with pytest.raises(VersionConflictError):
        await update_cookie(store, PATHS, other, 7)
    store.link.lose_next(operation="set", applied=True)  # type: ignore[attr-defined]
    assert await update_cookie(store, PATHS, other, 0) == 1
    await delete_cookie(store, PATHS, COOKIE.bookie_id, 1)
    await delete_cookie(store, PATHS, COOKIE.bookie_id, 1)
    assert await known_bookies(store, PATHS) == []


async def test_a_cookie_that_is_renewed_says_when(store: MemorySession) -> None:
    await ensure_layout(store, PATHS, random.Random(1))
    await create_cookie(store, PATHS, COOKIE)
    born = await read_cookie(store, PATHS, COOKIE.bookie_id)
    assert born is not None
    assert born.modified_txid == born.created_txid
    store.link.lose_next(operation="set", applied=True)  # type: ignore[attr-defined]
    renewed = await renew_cookie(store, PATHS, COOKIE)
    again = await read_cookie(store, PATHS, COOKIE.bookie_id)
    assert again is not None
    assert again.modified_txid == renewed > born.created_txid == again.created_txid
    assert again.cookie.encode() == COOKIE.encode()
    other = Cookie(COOKIE.bookie_id, ["/j"], ["/d0"], "7a1f")
    with pytest.raises(MalformedRecordError):
        await renew_cookie(store, PATHS, other)
