"""Apache Pulsar's clients with brokers that have other keys, other certificates, or no questions.

Each test starts both brokers again, and lets all clients try.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.harness.secure import SPREAD, SecureCluster, token
from tests.interop.ways import Ways
from tests.interop.ways_in import (
    CLIENTS,
    ELSEWHERE,
    EXTRA,
    GO,
    GO_ADMIN,
    asked,
    check_in,
    check_refused,
    open_client,
)

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    cluster = SecureCluster(tmp_path_factory.mktemp("others"))
    try:
        cluster.start()
        cluster.grant()
        cluster.spread(SPREAD)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def clients(secure: SecureCluster) -> Iterator[list[Ways]]:
    running: list[Ways] = []
    try:
        for name in CLIENTS:
            running.append(open_client(name, secure))
        yield running
    finally:
        for client in running:
            client.close()


def test_tls_alone(secure: SecureCluster, clients: list[Ways]) -> None:
    nothing: dict[str, Any] = dict.fromkeys(secure.settings)
    secure.start(**nothing)
    for client in clients:
        check_in(client, asked(client, secure))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_tokens_of_a_pair_of_keys(
    secure: SecureCluster, clients: list[Ways], algorithm: str
) -> None:
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm == "RS256":
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
    public = secure.directory / f"{algorithm}.pem"
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    secure.broker_token.write_text(token("broker", key=key, algorithm=algorithm))
    secure.start(token_secret_key=None, token_public_key=public)
    given = {"auth": "token", "token": token("alice", key=key, algorithm=algorithm)}
    for client in clients:
        check_in(client, asked(client, secure, **given))


def test_certificates_of_another_host(secure: SecureCluster, clients: list[Ways]) -> None:
    secure.broker_token.write_text(token("broker"))
    secure.start(hosts=("elsewhere.example",))
    given = {"auth": "token", "token": token("alice")}
    for client in clients:
        check_refused(client, secure, ELSEWHERE)
        check_in(client, asked(client, secure, **given, verify="nothing"))
        answer = asked(client, secure, **given, verify="no", timeout=5)
        if client.name in EXTRA["host name not verified"]:
            check_in(client, answer)
        else:
            # Go verifies the host name unless it verifies nothing.
            assert client.name in (GO, GO_ADMIN)
            assert answer.startswith("refused "), answer
