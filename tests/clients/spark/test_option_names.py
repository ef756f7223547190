"""Errors of the clients underneath name the options of a query."""

import pytest

from daybook.clients.python.errors import CredentialsError, TlsError
from daybook.clients.spark.option_names import in_options
from daybook.clients.spark.short_errors import in_one_sentence


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("name the file of its authority as `trusted`", "authority with the option tls.trusted"),
        ("turn the check off (verify_host)", "(tls.verifyHost)"),
        ("the token file /nope cannot be read: No such (token=)", "(token.file)"),
        ("the token in /t is empty, or is not one line (token=)", "(token.file)"),
        ("the token is empty, or is not one line of ASCII (token=)", "ASCII (token)"),
        ("the password file /p is empty (basic=)", "(basic.password.file)"),
        ("they do not match (certificate=, key=)", "(tls.certificate, tls.key)"),
        ("it is ZooKeeper's port with TLS (zookeeper_tls)", "(zookeeper.tls)"),
        ("set bookie_tls, or bookie_user", "set bookie.tls, or bookie.user"),
        (
            "set zookeeper_user and zookeeper_password_file (commands: --zookeeper-user)",
            "set zookeeper.user and zookeeper.password.file",
        ),
        (
            "this broker asks for credentials: use token or basic (AuthenticationError)",
            "use the option token.file or the options basic.user and basic.password.file (Auth",
        ),
        ("the topic my_zookeeper_tls_x does not exist (key=value)", "my_zookeeper_tls_x"),
    ],
)
def test_other_names_become_options(said: str, shown: str) -> None:
    found = in_options(said)
    assert shown in found
    assert "commands" not in found


@pytest.mark.parametrize(
    "error", [TlsError("sign it as `trusted`"), CredentialsError("no token file (token=)")]
)
def test_an_error_that_reaches_the_user_names_options(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        in_one_sentence(fail)()
    assert "option tls.trusted" in str(caught.value) or "(token.file)" in str(caught.value)


def test_a_defect_keeps_its_words() -> None:
    def fail() -> None:
        raise LookupError("(token=)")

    with pytest.raises(LookupError, match=r"\(token=\)"):
        in_one_sentence(fail)()
