"""Addresses of metadata stores: ours, Apache's, and invalid ones."""

import pytest

from daybook.clients.ledgers.address import MetadataAddress


@pytest.mark.parametrize(
    ("address", "hosts", "root"),
    [
        ("zk://localhost:2181/ledgers", "localhost:2181", "/ledgers"),
        ("zk://localhost", "localhost:2181", "/ledgers"),
        ("zk://zk1:2000,zk2/", "zk1:2000,zk2:2181", "/ledgers"),
        ("zk+hierarchical://zk1:2181;zk2:2181/a/b", "zk1:2181,zk2:2181", "/a/b"),
        ("zk+null://[::1]:7/x/", "[::1]:7", "/x"),
    ],
)
def test_an_address_names_hosts_and_a_root(address: str, hosts: str, root: str) -> None:
    assert MetadataAddress.parse(address) == MetadataAddress(hosts, root)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("localhost:2181", "no scheme"),
        ("etcd://localhost:2181/ledgers", "'etcd', which is none of"),
        ("zk+flat://localhost:2181/ledgers", r"'zk\+flat', which is none of"),
        ("zk:///ledgers", "is not host:port"),
        ("zk://a,,b/ledgers", "is not host:port"),
        ("zk://a:port/ledgers", "port"),
        ("zk://a:70000/ledgers", "range"),
        ("zk://me@a/ledgers", "is not host:port"),
        ("zk://a//ledgers", "empty name"),
    ],
)
def test_what_is_no_address_says_why(address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MetadataAddress.parse(address)
