"""The sentences of commands about errors of brokers and of clients."""

import pytest

from daybook.clients.cli.broker_client import error_sentence
from daybook.clients.python.errors import (
    AdminError,
    BrokerError,
    CredentialsError,
    NotAllowedError,
    TlsError,
)
from daybook.wire.proto import pulsar_pb2 as pb

URL = "pulsar+ssl://127.0.0.1:9"


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (TlsError("the certificate is signed by nobody"), "--tls-trusted"),
        (CredentialsError("the file of the token cannot be read"), "--token-file"),
        (NotAllowedError(pb.AuthenticationError, "this broker asks: use token"), "--token-file"),
        (AdminError(401, "no credentials"), "--basic-user"),
        (NotAllowedError(pb.AuthorizationError, "the role lacks the right"), None),
        (AdminError(403, "the role lacks the right"), None),
    ],
)
def test_the_options_for_tls_and_credentials_are_named(
    error: BrokerError, options: str | None
) -> None:
    sentence = error_sentence(error, URL, "--service-url")
    assert sentence is not None
    assert str(error) in sentence
    assert ("The options are" in sentence) is (options is not None)
    assert options is None or options in sentence


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (CredentialsError("the file cannot be read (token=)"), "be read (--token-file). The"),
        (CredentialsError("the file is empty (basic=)"), "is empty (--basic-password-file). The"),
        (TlsError("give both (certificate=, key=)"), "both (--tls-certificate, --tls-key). The"),
        (TlsError("name the file as `trusted`"), "the file with --tls-trusted. The"),
        (TlsError("turn it off (verify_host)"), "off (--tls-no-verify-host). The"),
        (TlsError("monkey=banana (other=)"), "monkey=banana (other=). The"),
    ],
)
def test_arguments_become_options(error: BrokerError, says: str) -> None:
    sentence = error_sentence(error, URL, "--service-url")
    assert sentence is not None
    assert says in sentence
