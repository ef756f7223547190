"""Passwords (SASL DIGEST-MD5) and TLS between our ledger client, Apache's, and bookies of both.

Apache's client and bookies take passwords from a JAAS file, and TLS from PEM files.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from daybook.bookie.ledger.codecs import VersionChoice
from daybook.clients import ledgers
from daybook.clients.ledgers import BookieAccess
from daybook.wire.digest_md5 import secret_of
from tests.harness.certificates import Authority, Issued
from tests.harness.processes import PATIENCE_S
from tests.interop.apache import SMALL_JVM, Apache
from tests.interop.cluster import SMALL_BOOKIE, Cluster, ZooKeeper
from tests.interop.peer import Peer, PeerError, Wire, check
from tests.interop.test_our_client import append

pytestmark = [pytest.mark.interop, pytest.mark.bookkeeper]

USER, PASSWORD = "bookkeeper", "secret"  # Apache's bookies want that word in the name of a user.
SASL = "org.apache.bookkeeper.sasl"
TLS = "org.apache.bookkeeper.tls"
LOGIN = "org.apache.zookeeper.server.auth.DigestLoginModule required"
JAAS = f"""
Bookie {{ {LOGIN} user_{USER}="{PASSWORD}"; }};
BookKeeper {{ {LOGIN} username="{USER}" password="{PASSWORD}"; }};
Wrong {{ {LOGIN} username="{USER}" password="wrong"; }};
"""


@dataclass
class World:
    """Files for both sides, and clusters of one bookie."""

    zookeeper: ZooKeeper
    peer: Peer
    directory: Path
    authority: Authority
    jvm: tuple[str, ...]

    @classmethod
    def make(cls, release: Apache, zookeeper: ZooKeeper, directory: Path) -> "World":
        jaas = directory / "jaas.conf"
        jaas.write_text(JAAS)
        jvm = (
            *SMALL_JVM,
            f"-Djava.security.auth.login.config={jaas}",
            "-Dzookeeper.sasl.client=false",
        )
        (directory / "users").write_text(f"{USER}:bookkeeper:{secret_of(USER, PASSWORD).hex()}\n")
        (directory / "password").write_text(PASSWORD)
        (directory / "wrong").write_text("wrong")
        peer = Peer(release, directory / "peer", jvm)
        return cls(zookeeper, peer, directory, Authority(directory), jvm)

    def apache(self, **settings: object) -> Cluster:
        """Start one of Apache's bookies."""
        cluster = Cluster(self.zookeeper, f"/{self.peer.name('secure-apache')}")
        self.peer.init(cluster)
        cluster.add_apache(jvm=self.jvm, settings={**SMALL_BOOKIE, **settings})
        return cluster.wait_ready()

    def own(self, **settings: object) -> Cluster:
        """Start one of our bookies."""
        cluster = Cluster(self.zookeeper, f"/{self.peer.name('secure-own')}")
        cluster.add_own(**settings)
        return cluster.wait_ready()

    def their_tls(self, issued: Issued, *, mutual: bool) -> dict[str, object]:
        """Return the settings of TLS of a client or a bookie of Apache's."""
        return {
            "tlsProvider": "JDK",
            "tlsProviderFactoryClass": f"{TLS}.TLSContextFactory",
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": self.authority.trusted,
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": issued.key,
            "tlsCertificatePath": issued.certificate,
            "tlsClientAuthentication": str(mutual).lower(),
        }

    def our_tls(self, **more: object) -> dict[str, object]:
        """Return the settings of TLS of one of our bookies."""
        issued = self.authority.issue("bookie")
        return {
            "tls": "required",
            "tls_certificate": str(issued.certificate),
            "tls_key": str(issued.key),
            "tls_trusted": str(self.authority.trusted),
            "bookie_tls": True,
            **more,
        }

    @property
    def our_passwords(self) -> dict[str, object]:
        """Return the settings of one of our bookies that asks for passwords."""
        return {
            "authentication": "require",
            "users_file": str(self.directory / "users"),
            "bookie_user": USER,
            "bookie_password_file": str(self.directory / "password"),
        }

    def access(
        self, *, tls: bool = False, password: str = "", certificate: str = ""
    ) -> BookieAccess:
        """Return what our client shows; `password` is the name of a file."""
        access = BookieAccess(tls, self.authority.trusted if tls else None)
        if password:
            access = replace(access, user=USER, password_file=self.directory / password)
        if certificate:
            issued = self.authority.issue(certificate)
            access = replace(access, certificate=issued.certificate, key=issued.key)
        return access


@pytest.fixture(scope="module")
def world(
    release: Apache, zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    made = World.make(release, zookeeper, tmp_path_factory.mktemp("security"))
    yield made
    made.peer.close()


THEIR_PASSWORDS = {"bookieAuthProviderFactoryClass": f"{SASL}.SASLBookieAuthProviderFactory"}
THEIR_PASSWORD = {"clientAuthProviderFactoryClass": f"{SASL}.SASLClientProviderFactory"}
THEIR_WRONG_PASSWORD = {**THEIR_PASSWORD, "saslJaasClientSectionName": "Wrong"}


def ours_works(cluster: Cluster, access: BookieAccess, protocol: VersionChoice) -> None:
    """Write a ledger with our client, and read it."""
    limits = ledgers.Limits(
        ledger=ledgers.LedgerLimits(bookies=ledgers.BookieLimits(protocol=protocol))
    )
    with ledgers.blocking.connect(cluster.address, limits=limits, bookie_access=access) as client:
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            append(writer, 200, 1000)
        reader = client.open(writer.ledger_id, recover=False)
        assert check(reader.read(timeout_s=PATIENCE_S), 0, 1000) == 200


def ours_is_refused(cluster: Cluster, access: BookieAccess) -> None:
    """Check that our client stores nothing."""
    limits = ledgers.Limits(
        ledger=ledgers.LedgerLimits(bookies=ledgers.BookieLimits(secure_timeout_s=2.0))
    )
    with ledgers.blocking.connect(cluster.address, limits=limits, bookie_access=access) as client:
        writer = client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        with pytest.raises((ledgers.LedgerError, TimeoutError)):
            writer.append(b"x", timeout_s=5)


def theirs_works(world: World, cluster: Cluster, wire: Wire, **settings: object) -> None:
    """Write a ledger with Apache's client, read it, and list the entries in v3."""
    client = world.peer.connect(cluster, wire, **settings)
    written = client.create(quorums=(1, 1, 1))
    assert written.append(200, 1000) == 199
    written.close()
    assert client.open(written.ledger_id, recover=True).read(0, 199, 1000) == 200
    client.close()


def theirs_is_refused(world: World, cluster: Cluster, wire: Wire, **settings: object) -> None:
    client = world.peer.connect(cluster, wire, **settings)
    with pytest.raises(PeerError):
        client.create(quorums=(1, 1, 1)).append(1, 10)
    client.close()


# -- our client, Apache's bookies


def test_our_client_and_their_passwords(world: World) -> None:
    cluster = world.apache(**THEIR_PASSWORDS)
    for protocol in ("v2", "v3"):
        ours_works(cluster, world.access(password="password"), protocol)
    ours_is_refused(cluster, world.access(password="wrong"))
    ours_is_refused(cluster, world.access())
    cluster.close()


@pytest.mark.parametrize("mutual", [False, True])
def test_our_client_and_their_tls(world: World, mutual: bool) -> None:
    issued = world.authority.issue("apache")
    cluster = world.apache(**world.their_tls(issued, mutual=mutual))
    access = world.access(tls=True, certificate="client" if mutual else "")
    for protocol in ("v2", "v3"):
        ours_works(cluster, access, protocol)
    if mutual:
        ours_is_refused(cluster, world.access(tls=True))
    cluster.close()


def test_our_client_their_tls_and_passwords(world: World) -> None:
    issued = world.authority.issue("apache")
    cluster = world.apache(**world.their_tls(issued, mutual=False), **THEIR_PASSWORDS)
    for protocol in ("v2", "v3"):
        ours_works(cluster, world.access(tls=True, password="password"), protocol)
    ours_is_refused(cluster, world.access(tls=True, password="wrong"))
    cluster.close()


def test_our_client_and_their_roles_in_certificates(world: World) -> None:
    issued = world.authority.issue("apache", unit="0:broker")
    cluster = world.apache(
        **world.their_tls(issued, mutual=True),
        bookieAuthProviderFactoryClass=f"{TLS}.BookieAuthZFactory",
        authorizedRoles="broker",
    )
    client = world.authority.issue("with-role", unit="0:broker")
    access = BookieAccess(True, world.authority.trusted, client.certificate, client.key)
    for protocol in ("v2", "v3"):
        ours_works(cluster, access, protocol)
    ours_is_refused(cluster, world.access(tls=True, certificate="without-role"))
    cluster.close()


def test_our_client_does_not_use_their_bookie_without_tls(world: World) -> None:
    cluster = world.apache()
    ours_is_refused(cluster, world.access(tls=True))
    ours_works(cluster, world.access(password="password"), "v2")  # It asks nobody, and says so.
    cluster.close()


# -- Apache's client, our bookies


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_their_client_and_our_passwords(world: World, wire: Wire) -> None:
    cluster = world.own(**world.our_passwords)
    theirs_works(world, cluster, wire, **THEIR_PASSWORD)
    theirs_is_refused(world, cluster, wire, **THEIR_WRONG_PASSWORD)
    theirs_is_refused(world, cluster, wire)
    cluster.close()


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_their_client_with_a_password_and_our_bookie_that_asks_nobody(
    world: World, wire: Wire
) -> None:
    cluster = world.own()
    theirs_works(world, cluster, wire, **THEIR_PASSWORD)
    cluster.close()


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_their_client_and_our_tls(world: World, wire: Wire) -> None:
    issued = world.authority.issue("their-client")
    cluster = world.own(**world.our_tls())
    theirs_works(world, cluster, wire, **world.their_tls(issued, mutual=False))
    theirs_is_refused(world, cluster, wire)
    cluster.close()


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_their_client_and_our_certificates(world: World, wire: Wire) -> None:
    cluster = world.own(
        **world.our_tls(
            tls_client_certificates="required",
            authentication="require",
            allowed_certificates=["their-client", "bookie"],
            allowed_certificate_roles=["broker"],
        )
    )
    allowed = world.authority.issue("their-client")
    theirs_works(world, cluster, wire, **world.their_tls(allowed, mutual=True))
    role = world.authority.issue("with-role", unit="0:broker")
    theirs_works(world, cluster, wire, **world.their_tls(role, mutual=True))
    other = world.authority.issue("other")
    theirs_is_refused(world, cluster, wire, **world.their_tls(other, mutual=True))
    (world.directory / f"stranger-{wire}").mkdir()
    stranger = Authority(world.directory / f"stranger-{wire}").issue("their-client")
    theirs_is_refused(world, cluster, wire, **world.their_tls(stranger, mutual=True))
    cluster.close()


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_their_client_with_our_tls_and_passwords(world: World, wire: Wire) -> None:
    """Their client begins to authenticate itself in plain text, right behind START_TLS."""
    issued = world.authority.issue("their-client")
    cluster = world.own(**world.our_tls(), **world.our_passwords)
    tls = world.their_tls(issued, mutual=False)
    theirs_works(world, cluster, wire, **tls, **THEIR_PASSWORD)
    theirs_is_refused(world, cluster, wire, **tls, **THEIR_WRONG_PASSWORD)
    theirs_is_refused(world, cluster, wire, **tls)
    cluster.close()
