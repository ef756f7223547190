"""The addresses of this machine."""

import socket
from typing import Any

import pytest

from daybook.wire import own_address
from daybook.wire.own_address import is_loopback, reachable_host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_only_this_machine_connects_to_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "2001:db8::1"])
def test_others_connect_to_the_rest(host: str) -> None:
    assert not is_loopback(host)


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, 1, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "gethostname", lambda: "me")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_a_name_is_loopback_only_if_all_of_its_addresses_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving(monkeypatch, "127.0.1.1", "10.0.0.1")
    assert not is_loopback("me")
    resolving(monkeypatch, "127.0.1.1", "::1")
    assert is_loopback("me")
    resolving(monkeypatch)
    with pytest.raises(OSError, match="Name or service"):
        is_loopback("me")


def test_the_host_name_counts_if_it_leads_to_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_address, "_address_of_default_route", lambda: "10.0.0.1")
    resolving(monkeypatch, "10.0.0.2")
    assert reachable_host() == "me"
    for elsewhere in (("127.0.1.1",), ("10.0.0.2", "127.0.1.1"), ()):
        resolving(monkeypatch, *elsewhere)
        assert reachable_host() == "10.0.0.1"


def test_a_machine_without_a_network_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch)

    class Unreachable(socket.socket):
        def connect(self, address: Any) -> None:
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "socket", Unreachable)
    assert reachable_host() is None
