"""The records of bookies and ledger clients other than entries, byte by byte: `docs/formats.md`.

If a test here fails, a format has changed: it needs a new version and new golden files.  Most of
the formats are Apache BookKeeper's, and their other versions stay readable forever.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from daybook.bookie.ledger.metadata import (
    LedgerMetadata,
    LedgerState,
    decode_metadata,
    encode_metadata,
)
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.registry.cookies import Cookie
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import BookieInfo
from daybook.bookie.server.read_only_state import READ_ONLY_FILE, ReadOnlyState
from daybook.bookie.server.registration import replace_mark
from daybook.bookie.storage.store import open_store
from daybook.wire.clock import SystemClock
from daybook.wire.digest import DigestType
from daybook.wire.metadata.memory import MemoryStore
from tests.harness.clocks import FixedClock
from tests.harness.disk import Platter

GOLDEN = Path(__file__).parents[1] / "golden" / "bookkeeper_metadata"
PATHS = LedgerPaths()
COOKIE = Cookie("127.0.0.1:3181", ["/d0", "/d1"], ["/d0", "/d1"], "a5ef8d94-df99-4551-b831")
OLD_COOKIES = {
    "cookie_v3": replace(COOKIE, instance_id=""),
    "cookie_v4": COOKIE,
    "cookie_v5_with_index": replace(COOKIE, index_directories=("/x",)),
}
PROPERTIES = {"daybook.blocks": "1", "daybook.process": "00ff", "daybook.rack": "/r1"}
INFO = BookieInfo("b1", "127.0.0.2", 3181, PROPERTIES, 8000)
BOOKIES = tuple(BookieId(f"127.0.0.1:318{number}") for number in range(4))
OPEN = LedgerMetadata(
    quorums=Quorums(3, 3, 2),
    fragments=(Fragment(0, BOOKIES[:3]), Fragment(7, BOOKIES[1:])),
    state=LedgerState.OPEN,
    last_entry_id=-1,
    length=0,
    digest_type=DigestType.CRC32C,
    password=b"pw",
    custom={"application": b"daybook"},
    creator_token=5,
)
LEDGERS = {
    "ledger_v3_open": OPEN,
    "ledger_v3_in_recovery": OPEN.in_recovery(),
    "ledger_v3_closed": OPEN.in_recovery().closed_at(9, 1000),
}


def golden(name: str) -> bytes:
    (path,) = GOLDEN.glob(f"{name}.*")
    return bytes.fromhex(path.read_text()) if path.suffix == ".hex" else path.read_bytes()


def test_the_cookie() -> None:
    assert COOKIE.encode() == golden("cookie_v5")
    assert Cookie.decode(golden("cookie_v5")).encode() == COOKIE.encode()


@pytest.mark.parametrize("name", OLD_COOKIES)
def test_cookies_of_others_are_read(name: str) -> None:
    assert Cookie.decode(golden(name)).encode() == OLD_COOKIES[name].encode()


def test_the_registration() -> None:
    assert INFO.encode() == golden("registration")
    assert BookieInfo.decode("b1", golden("registration")) == INFO


@pytest.mark.parametrize("name", LEDGERS)
def test_ledger_metadata(name: str) -> None:
    assert encode_metadata(LEDGERS[name]) == golden(name)
    assert decode_metadata(golden(name)) == LEDGERS[name]


@pytest.mark.parametrize(
    ("name", "state", "last"),
    [
        ("ledger_v1_open", LedgerState.OPEN, -1),
        ("ledger_v1_in_recovery", LedgerState.IN_RECOVERY, -1),
        ("ledger_v1_closed", LedgerState.CLOSED, 9),
        ("ledger_v2_open", LedgerState.OPEN, -1),
        ("ledger_v2_closed", LedgerState.CLOSED, 9),
    ],
)
def test_older_ledger_metadata_are_read_and_stay_in_their_version(
    name: str, state: LedgerState, last: int
) -> None:
    metadata = decode_metadata(golden(name))
    assert (metadata.state, metadata.last_entry_id) == (state, last)
    assert metadata.fragments == OPEN.fragments
    assert encode_metadata(metadata) == golden(name)


async def test_the_layout_and_the_id_of_the_cluster() -> None:
    store = MemoryStore(SystemClock()).session("b1")
    await ensure_layout(store, PATHS, random.Random(1))
    layout, instance_id = await store.get(PATHS.layout), await store.get(PATHS.instance_id)
    assert layout is not None
    assert instance_id is not None
    assert layout.value == golden("layout")
    assert instance_id.value == golden("instance_id")


async def test_files_beside_the_log() -> None:
    platter = Platter(random.Random(1))
    async with open_store(
        disk=platter.mount(), directories=["d0"], index=platter.indexes().open, clock=FixedClock()
    ) as store:
        before, mark = await replace_mark(
            platter.mount(), "d0", f"{random.Random(1).getrandbits(128):032x}"
        )
        assert before == ""
        assert platter.content("d0/REGISTRATION") == golden("registration_mark")
        assert (
            await replace_mark(platter.mount(), "d0", f"{random.Random(2).getrandbits(128):032x}")
        )[0] == mark
        await ReadOnlyState(platter.mount(), ["d0"], store).change(True)
        assert platter.content(f"d0/{READ_ONLY_FILE}") == golden("readonly_command")
