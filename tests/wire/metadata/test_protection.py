"""The records of the protection and of announcements, byte by byte."""

from pathlib import Path

import pytest
import trio

from daybook.wire.clock import SystemClock
from daybook.wire.metadata.acl import check_identity, digest_identity
from daybook.wire.metadata.announce import Announcer, Process, announcement_path
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.metadata.protection import (
    Protection,
    ProtectionError,
    Step,
    decode,
    identities_path,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "metadata_protection_v1"
ONE = Protection(
    3,
    Step.PROTECTED,
    ("/ledgers",),
    (digest_identity("daybook", "p"), "x509:CN=bookie"),
    (digest_identity("admin", "q"),),
)


def test_the_records_are_those_of_the_golden_files() -> None:
    step, identities = ((GOLDEN / f"{name}.json").read_bytes() for name in ("step", "identities"))
    assert (ONE.encode(), ONE.encode_identities()) == (step, identities)
    assert decode(step, identities) == ONE
    assert decode(step) == Protection(3, Step.PROTECTED, ("/ledgers",), known=False)
    assert decode(None) == Protection()
    assert identities_path(3) == ONE.identities_path == "/daybook/security/acl-0000000003"


async def test_an_announcement_is_that_of_the_golden_file() -> None:
    store = MemoryStore(SystemClock()).session()
    await Announcer(store, Process("bookie", "b1:3181"), False).announce()
    path = announcement_path(store.session_id)
    assert path == f"/daybook/processes/{store.session_id:016x}"
    record = await store.get(path)
    assert record is not None
    assert record.value == (GOLDEN / "process.json").read_bytes()
    assert announcement_path(-1) == "/daybook/processes/ffffffffffffffff"
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "value", [b"", b"{", b'{"version":2,"generation":1,"step":"open"}', b'{"version":1}', b"\xff"]
)
def test_other_records_are_refused(value: bytes) -> None:
    with pytest.raises(ProtectionError):
        decode(value)


def test_later_releases_may_add_keys() -> None:
    value = b'{"version":1,"generation":2,"step":"open","more":[1]}'
    assert decode(value) == Protection(2, Step.OPEN)


def test_the_hash_is_that_of_zookeeper() -> None:
    # As org.apache.zookeeper.server.auth.DigestAuthenticationProvider prints it.
    assert digest_identity("super", "admin") == "digest:super:xQJmxLMiHGwaqBvst5y6rkB6HQs="


@pytest.mark.parametrize(
    "text",
    ["", "daybook", "world:anyone", "auth:", "digest:daybook", "digest:daybook:secret", "x509:"],
)
def test_what_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        check_identity(text)


@pytest.mark.parametrize("text", [*ONE.identities, "sasl:pulsar", "ip:10.0.0.1"])
def test_identities_are_accepted(text: str) -> None:
    assert check_identity(text) == text
