"""Certificates as files: what is wrong with them is said, and a change needs no restart."""

import ssl
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from cryptography import x509

from daybook.wire.logging import Log
from daybook.wire.tls_files import (
    ReloadedContext,
    TlsFiles,
    TlsFilesError,
    client_context,
    server_context,
)
from tests.harness.certificates import Authority, Issued

_build = partial(server_context, client_certificates="off")
_DAY_MS = 24 * 3600 * 1000


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **facts: Any) -> None:
        self.lines.append(("info", event, facts))

    def warning(self, event: str, **facts: Any) -> None:
        self.lines.append(("warning", event, facts))

    @property
    def log(self) -> Log:
        return cast("Log", self)

    def pop(self) -> list[str]:
        texts = [" ".join([level, event, *map(str, f.values())]) for level, event, f in self.lines]
        self.lines.clear()
        return texts


class Wall:
    """A wall clock that the test sets."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms


def _files(issued: Issued) -> TlsFiles:
    return TlsFiles(issued.certificate, issued.key)


def _put(issued: Issued, new: Issued) -> None:
    """Replace the files of a certificate, as a tool that renews it does."""
    new.certificate.replace(issued.certificate)
    new.key.replace(issued.key)


def _contexts(files: TlsFiles, lines: Lines, now_ms: int = 0) -> ReloadedContext:
    return ReloadedContext(files, _build, clock=Wall(now_ms), log=lines.log)


async def test_a_new_certificate_is_in_force_a_second_later(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    authority, lines = Authority(tmp_path), Lines()
    issued = authority.issue("server")
    contexts = _contexts(_files(issued), lines)
    first = contexts.get()
    _put(issued, authority.issue("new"))
    assert contexts.get() is first
    await trio.sleep(1)
    second = contexts.get()
    assert second is not first
    assert lines.pop() == [
        f"info the certificates have changed and are in force {issued.certificate}, {issued.key}"
    ]
    await trio.sleep(1)
    assert contexts.get() is second


async def test_half_written_files_leave_the_previous_ones_in_force(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    authority, lines = Authority(tmp_path), Lines()
    issued, new = authority.issue("server"), authority.issue("new")
    contexts = _contexts(_files(issued), lines)
    first = contexts.get()

    async def look() -> list[str]:
        await trio.sleep(1)
        contexts.get()
        return lines.pop()

    # The new certificate is there, and its key is not yet.
    issued.certificate.write_bytes(new.certificate.read_bytes())
    assert "does not belong to the certificate" in (await look())[0]
    assert await look() == []
    assert contexts.get() is first
    issued.certificate.write_bytes(new.certificate.read_bytes()[:200])
    assert "is not a certificate in PEM form" in (await look())[0]
    issued.certificate.unlink()
    assert f"the certificate {issued.certificate} cannot be read: No such file" in (await look())[0]
    assert await look() == []
    assert contexts.get() is first
    _put(issued, new)
    assert "are in force" in (await look())[0]
    assert contexts.get() is not first


@pytest.mark.parametrize("name", ["load_cert_chain", "load_verify_locations"])
async def test_a_file_that_vanishes_while_it_is_read_ends_no_port(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    authority, lines = Authority(tmp_path), Lines()
    issued, new = authority.issue("server"), authority.issue("new")
    files = TlsFiles(issued.certificate, issued.key, Path(authority.trusted))
    build = partial(server_context, client_certificates="required")
    contexts = ReloadedContext(files, build, clock=Wall(0), log=lines.log)
    first = contexts.get()

    def vanished(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(ssl.SSLContext, name, vanished)
    _put(issued, new)
    await trio.sleep(1)
    assert contexts.get() is first
    assert "No such file" in lines.pop()[0]


async def test_an_expiring_certificate_is_named_once_a_day(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lines = Lines()
    issued = Authority(tmp_path).issue("server", valid_for=timedelta(days=10))
    until = x509.load_pem_x509_certificate(issued.certificate.read_bytes()).not_valid_after_utc
    until_ms = int(until.timestamp() * 1000)
    wall = Wall(until_ms - 8 * _DAY_MS)
    contexts = ReloadedContext(_files(issued), _build, clock=wall, log=lines.log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(contexts.run)
        await trio.sleep(3601)
        assert lines.pop() == []
        wall.ms = until_ms - 6 * _DAY_MS
        await trio.sleep(4 * 3600)
        soon = "warning the certificate expires soon: replace its file; no restart is needed"
        assert lines.pop() == [f"{soon} {issued.certificate} 6"]
        wall.ms += _DAY_MS
        await trio.sleep(3600)
        assert lines.pop() == [f"{soon} {issued.certificate} 5"]
        wall.ms = until_ms + 1
        await trio.sleep(3600)
        assert "the certificate has expired" in lines.pop()[0]
        nursery.cancel_scope.cancel()


def _text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


WRONG: dict[str, tuple[Callable[[Path, Authority], object], str]] = {
    "no certificate": (
        lambda d, a: server_context(TlsFiles(), "off"),
        "a server with TLS needs a certificate and its private key",
    ),
    "a missing file": (
        lambda d, a: server_context(TlsFiles(d / "none.pem", a.issue("x").key), "off"),
        "none.pem cannot be read: No such file or directory",
    ),
    "a missing key": (
        lambda d, a: server_context(TlsFiles(a.issue("x").certificate, d / "none.key"), "off"),
        "the private key .*none.key cannot be read: No such file or directory",
    ),
    "another key": (
        lambda d, a: server_context(TlsFiles(a.issue("x").certificate, a.issue("y").key), "off"),
        "the private key .*y.key does not belong to the certificate .*x.pem",
    ),
    "an encrypted key": (
        lambda d, a: _build(_files(a.issue("x", password=b"secret"))),
        "the private key .*x.key is encrypted, and nobody can type its password here",
    ),
    "no certificate inside": (
        lambda d, a: server_context(TlsFiles(_text(d / "t.pem", "hello"), a.issue("x").key), "off"),
        "t.pem is not a certificate in PEM form",
    ),
    "no key inside": (
        lambda d, a: server_context(
            TlsFiles(a.issue("x").certificate, _text(d / "t.key", "hello")), "off"
        ),
        "with the private key .*t.key cannot be used",
    ),
    "nobody is trusted": (
        lambda d, a: server_context(_files(a.issue("x")), "required"),
        "certificates of clients are checked against trusted authorities, and none are given",
    ),
    "trust in nothing": (
        lambda d, a: client_context(TlsFiles(trusted=_text(d / "t.pem", "hello"))),
        "the file of trusted authorities .*t.pem holds no certificate",
    ),
    "half a client": (
        lambda d, a: client_context(TlsFiles(a.issue("x").certificate)),
        "a client's certificate and its private key belong together: give both",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_with_the_files_is_said_in_a_sentence(
    tmp_path: Path, case: tuple[Callable[[Path, Authority], object], str]
) -> None:
    make, why = case
    with pytest.raises(TlsFilesError, match=why) as caught:
        make(tmp_path, Authority(tmp_path))
    assert "\n" not in str(caught.value)


def test_contexts_demand_tls_1_2(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for context in (_build(authority.files("x")), client_context(TlsFiles())):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION
    assert client_context(TlsFiles()).check_hostname
    unchecked = client_context(TlsFiles(), verify_host=False)
    assert not unchecked.check_hostname
    assert unchecked.verify_mode is ssl.CERT_REQUIRED
