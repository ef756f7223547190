"""Brokers that are reached with TLS alone, and that ask everybody who they are.

Two brokers share a ZooKeeper and a bookie.  They know roles by tokens, passwords, certificates and
the tokens of an issuer.  `admin` and `broker` are super users, `alice` may produce and consume in
public/default, `writer` may produce, `reader` may consume, `stranger` may do nothing.

The certificates of the brokers are made out to `localhost` alone, so the same ports under the name
127.0.0.1 are those of another host.
"""

import os
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import jwt
import pytest

from daybook.clients.python import blocking
from daybook.clients.python.tls import TlsOptions
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from tests.harness.certificates import Authority
from tests.harness.issuer import Issuer
from tests.harness.processes import PATIENCE_S, ServerProcess

SECRET = bytes(range(100, 164))
PASSWORD = "correct horse battery staple"
STORE_PASSWORD = "changeit"
RIGHTS = {"alice": ["produce", "consume"], "writer": ["produce"], "reader": ["consume"]}
SPREAD = [f"ways-{number}" for number in range(4)]  # topics that both brokers serve


def token(
    role: str, lasts_s: float | None = None, key: Any = SECRET, algorithm: str = "HS256"
) -> str:
    """Return a token of the brokers' own key."""
    claims: dict[str, Any] = {"sub": role}
    if lasts_s is not None:
        claims["exp"] = time.time() + lasts_s
    return jwt.encode(claims, key, algorithm)


class SecureCluster:
    """`directory` gets all files; `settings` are added to those of the brokers.

    `trusted` is the file of the authorities that brokers and clients trust.
    """

    def __init__(self, directory: Path, *, bookies: int = 1, **settings: object) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.trusted = directory / "trusted.pem"
        self.trust(self.authority.trusted.read_bytes())
        self.issuer = Issuer(self.authority)
        self.issuer.add_client("alice-id", "alice-secret", "alice")
        users = directory / "users"
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        users.write_text(f"alice:{hashed}\n")
        self.broker_token = directory / "broker.token"
        self.broker_token.write_text(token("broker"))
        self.secret = directory / "secret.key"
        self.secret.write_bytes(SECRET)
        self.key = SECRET  # The tokens of `admin` are signed with it.
        self.settings: dict[str, object] = {
            "authentication": '["token", "basic", "tls"]',
            "token_secret_key": self.secret,
            "basic_file": users,
            "oidc_issuers": f'["{self.issuer.url}"]',
            "oidc_audience": self.issuer.audience,
            "authorization": "true",
            "super_users": '["admin", "broker"]',
            "broker_token_file": self.broker_token,
            "auth_refresh_s": 10,
            "tls_client_certificates": "optional",
            **settings,
        }
        data = StandaloneProcess(
            directory=directory / "data", bookies=bookies, brokers=1, options=ANY_PORTS
        )
        data.local("kill", "broker-1")
        self._data = data
        self.brokers: list[ServerProcess] = []

    def start(self, hosts: tuple[str, ...] = ("localhost",), **settings: object) -> None:
        """Start both brokers, with certificates for `hosts`; end those that run.

        A broker starts only with a certificate for its own host, so one for another host takes the
        place of that later.
        `settings` replace those of the cluster; None leaves one out.
        """
        self.stop()
        common: dict[str, Any] = {
            "zookeeper": self._data.zookeeper,
            "advertised_host": "localhost",
            "port": -1,
            "http_port": -1,
            "tls_port": 0,
            "https_port": 0,
            "tls_trusted": self.trusted,
            "balance_interval_s": 1_000_000,
            **self.settings,
            **settings,
        }
        common = {name: value for name, value in common.items() if value is not None}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(self.authority.trusted))  # It signs for the issuer.
            for index in range(2):
                issued = self.authority.issue(f"broker-{index}", hosts=("localhost",))
                own: dict[str, Any] = {
                    "tls_certificate": issued.certificate,
                    "tls_key": issued.key,
                    **common,
                }
                log = self.directory / f"broker-{index}.log"
                self.brokers.append(ServerProcess.broker(log, **own))
        for process in self.brokers:
            process.read_ready()
        if hosts != ("localhost",):
            self._certify_and_wait(hosts)

    def _certify_and_wait(self, hosts: tuple[str, ...]) -> None:
        """Exchange the certificates of the brokers, and return when they are in force."""
        ports = [("localhost", int(process.ready["tls_port"])) for process in self.brokers]
        before = [ssl.get_server_certificate(port) for port in ports]
        self.certify(self.authority, hosts)
        deadline = time.monotonic() + PATIENCE_S
        while any(ssl.get_server_certificate(p) == b for p, b in zip(ports, before, strict=True)):
            assert time.monotonic() < deadline, "the brokers keep their former certificates"
            time.sleep(0.2)

    def trust(self, authorities: bytes) -> None:
        """Exchange the authorities that brokers and clients trust."""
        new = self.directory / "trusted.new"
        new.write_bytes(authorities)
        new.replace(self.trusted)

    def certify(self, authority: Authority, hosts: tuple[str, ...] = ("localhost",)) -> None:
        """Exchange the certificates of the brokers."""
        for index in range(len(self.brokers)):
            issued = authority.issue(f"broker-{index}-new", hosts=hosts)
            issued.certificate.replace(self.directory / f"broker-{index}.pem")
            issued.key.replace(self.directory / f"broker-{index}.key")

    def stop(self) -> None:
        for process in self.brokers:
            process.kill()
        self.brokers = []

    def close(self) -> None:
        self.stop()
        self._data.stop()
        self.issuer.close()

    def url(self, scheme: str = "pulsar+ssl", host: str = "localhost") -> str:
        """Return one URL that names both brokers."""
        port = "tls_port" if scheme == "pulsar+ssl" else "https_port"
        return f"{scheme}://" + ",".join(f"{host}:{each.ready[port]}" for each in self.brokers)

    def one_url(self, scheme: str = "pulsar+ssl", host: str = "localhost") -> str:
        """Return the URL of the first broker."""
        return self.url(scheme, host).partition(",")[0]

    @property
    def tls(self) -> TlsOptions:
        return TlsOptions(trusted=self.trusted)

    @contextmanager
    def admin(self, credentials: str | None = None) -> Iterator[blocking.Admin]:
        """Connect as `admin`, or with another token."""
        given = token("admin", key=self.key) if credentials is None else credentials
        with blocking.connect_admin(self.url("https"), tls=self.tls, token=given) as admin:
            yield admin

    def grant(self, rights: Mapping[str, list[str]] = RIGHTS) -> None:
        with self.admin() as admin:
            for role, actions in rights.items():
                path = f"/admin/v2/namespaces/public/default/permissions/{role}"
                admin.call("POST", path, body=actions)

    def spread(self, topics: list[str]) -> None:
        """Create topics, and move them so that each broker serves some of them."""
        lookup = "/lookup/v2/topic/persistent/public/default"
        with self.admin() as admin:
            for topic in topics:
                admin.create_topic(topic)
            self.spread_bundles(admin, topics)
            owners = {str(admin.call("GET", f"{lookup}/{topic}")) for topic in topics}
        assert len(owners) == len(self.brokers), owners

    def spread_bundles(self, admin: blocking.Admin, topics: list[str], first: int = 0) -> None:
        """Move the bundles of topics to the brokers in turn, the first one to that broker."""
        lookup = "/lookup/v2/topic/persistent/public/default"
        bundles = sorted({str(admin.call("GET", f"{lookup}/{topic}/bundle")) for topic in topics})
        assert len(bundles) > 1
        names = [f"localhost:{each.ready['https_port']}" for each in self.brokers]
        with blocking.connect(
            self.url(), tls=self.tls, token=token("admin", key=self.key)
        ) as client:
            for topic in topics:
                client.lookup(topic)  # so that all bundles are owned
        for number, bundle in enumerate(bundles, first):
            name = names[number % len(names)]
            path = f"/admin/v2/namespaces/public/default/{bundle}/unload"
            admin.call("PUT", path, query={"destinationBroker": name})

    # -- what clients get

    def key_file(self, secret: str = "alice-secret") -> Path:
        """Write the file with which a client of the issuer asks for tokens."""
        path = self.directory / f"{secret}.json"
        path.write_text(
            '{"type": "client_credentials", "client_id": "alice-id",'
            f' "client_secret": "{secret}", "issuer_url": "{self.issuer.url}"}}'
        )
        return path

    def oauth2(self, secret: str = "alice-secret") -> dict[str, str]:
        """Return the fields of a client that asks the issuer for tokens."""
        return {
            "auth": "oauth2",
            "issuer": self.issuer.url,
            "audience": self.issuer.audience,
            "key_file": str(self.key_file(secret)),
            "issuer_trusted": str(self.authority.trusted),
        }

    def certificate(
        self, name: str, authority: Authority | None = None, **how: Any
    ) -> dict[str, str]:
        """Return the fields of a client with a certificate."""
        issued = (authority or self.authority).issue(name, hosts=(), **how)
        return {"auth": "tls", "certificate": str(issued.certificate), "key": str(issued.key)}

    def stores(self, name: str) -> dict[str, str]:
        """Return the fields of a client with certificates in Java's stores."""
        issued = self.authority.issue(name, hosts=())
        key_store = self.directory / f"{name}-key.p12"
        trust_store = self.directory / f"{name}-trust.p12"
        trust_store.unlink(missing_ok=True)
        _run(
            *("openssl", "pkcs12", "-export", "-passout", f"pass:{STORE_PASSWORD}"),
            *("-name", name, "-in", issued.certificate, "-inkey", issued.key, "-out", key_store),
        )
        _run(
            *("keytool", "-importcert", "-noprompt", "-alias", "ca", "-storetype", "PKCS12"),
            *("-storepass", STORE_PASSWORD, "-file", self.authority.trusted),
            *("-keystore", trust_store),
        )
        return {
            "auth": "store",
            "key_store": str(key_store),
            "trust_store": str(trust_store),
            "store_password": STORE_PASSWORD,
        }


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True)


def environment_of(cluster: SecureCluster) -> dict[str, str]:
    """Return the environment of programs that trust the authorities of the machine alone."""
    return {**os.environ, "SSL_CERT_FILE": str(cluster.authority.trusted)}
