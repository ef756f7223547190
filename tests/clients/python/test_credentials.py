"""Credentials of the Python client: where they come from, and that they are renewed."""

import base64
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import daybook
from daybook.broker.service.lookup import LookupResult
from daybook.clients.python.admin import Admin
from daybook.clients.python.credentials import Credentials, PasswordFile
from tests.broker.security.test_rights import LOCKED, store_policies
from tests.broker.security.test_sessions import NOW_S, SETTINGS, token
from tests.harness.broker import HOST, PORT, Cluster, open_broker

URL = f"pulsar://{HOST}:{PORT}"


def connect(cluster: Cluster, given: Any = None, **options: Any) -> daybook.connect:
    found = LookupResult(URL, None, redirect=False, authoritative=True)
    cluster.broker.lookups.result = found
    return daybook.connect(
        URL,
        token=given,
        network=cluster.broker.network.of("application"),
        clock=cluster.broker.clock,
        rng=random.Random(1),
        **options,
    )


def test_what_is_sent_for_each_kind(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    file.write_text("abc\n")
    for given in ("abc", file.as_uri(), lambda: "abc"):
        credentials = Credentials(given)
        assert (credentials.method, credentials.data()) == ("token", b"abc")
        assert credentials.header() == "Bearer abc"
        assert "abc" not in repr(credentials)
    file.write_text("def")
    assert Credentials(file.as_uri()).data() == b"def"
    basic = Credentials(basic="ben:secret")
    assert (basic.method, basic.data()) == ("basic", b"ben:secret")
    assert basic.header() == "Basic " + base64.b64encode(b"ben:secret").decode()
    assert Credentials().method == "none"
    assert Credentials().header() == ""


def test_a_password_file_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "password"
    credentials = Credentials(basic=PasswordFile("ben", file))
    for password in ("secret", " other: word "):
        file.write_text(f"{password}\n")
        assert (credentials.method, credentials.data()) == ("basic", f"ben:{password}".encode())
        assert password not in repr(credentials)
        assert password not in repr(PasswordFile("ben", file))
    file.write_text("\n")
    with pytest.raises(daybook.CredentialsError, match=r"is empty \(basic=\)"):
        credentials.data()
    file.write_bytes(b"\xffsecret")
    with pytest.raises(daybook.CredentialsError) as caught:
        credentials.header()
    assert "secret" not in str(caught.value)
    file.unlink()
    with pytest.raises(daybook.CredentialsError, match=f"{file} cannot be read: No such file"):
        credentials.header()
    for wrong in ("", "a:b"):
        with pytest.raises(ValueError, match="is no user"):
            PasswordFile(wrong, file)


def test_a_function_returns_user_and_password() -> None:
    assert Credentials(basic=lambda: "ben:secret").data() == b"ben:secret"
    for wrong in (lambda: "secret", fails):
        with pytest.raises(daybook.CredentialsError) as caught:
            Credentials(basic=wrong).data()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("token", "basic"), [("a", "b:c"), ("", None), (7, None), (None, "nothing"), (None, 7)]
)
def test_mistakes_are_errors_before_anything_is_opened(token: Any, basic: Any) -> None:
    for make in (
        lambda: daybook.blocking.connect(URL, token=token, basic=basic),
        lambda: daybook.aio.connect(URL, token=token, basic=basic),
        lambda: Admin("http://localhost", token=token, basic=basic),
    ):
        with pytest.raises((ValueError, TypeError)):
            make()


def fails() -> str:
    raise RuntimeError("the vault says: secret")


@pytest.mark.parametrize("given", ["file:///not/there", "a\nb", "é", fails, lambda: ""])
async def test_a_token_that_cannot_be_read(given: str | Callable[[], str]) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        with pytest.raises(daybook.CredentialsError, match=r" \(token=\)$") as caught:
            async with connect(cluster, given):
                pass
        assert "secret" not in str(caught.value)


async def test_a_client_with_a_token_works_and_one_without_is_told_why() -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        async with connect(cluster, token().decode()) as client:
            producer = await client.create_producer("t")
            await producer.send(b"x")
        for wrong in (None, "x"):
            with pytest.raises(daybook.AuthenticationError):
                async with connect(cluster, wrong):
                    pass


async def test_a_client_renews_its_token(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        issued = 0

        def issue() -> str:
            nonlocal issued
            issued += 1
            return token(exp=NOW_S + 20 * issued).decode()

        async with connect(cluster, issue) as client:
            producer = await client.create_producer("t")
            for _ in range(10):
                await producer.send(b"x")
                await trio.sleep(10)
            connections = cluster.broker.serving
        assert issued in (5, 6)
        assert connections == 1


async def test_a_client_whose_token_is_not_renewed_is_told(autojump_clock: MockClock) -> None:
    async with (
        open_broker(settings=SETTINGS) as cluster,
        connect(cluster, token(exp=NOW_S + 20).decode()) as client,
    ):
        producer = await client.create_producer("t")
        await producer.send(b"x")
        await trio.sleep(30)
        with pytest.raises(daybook.AuthenticationError, match="expired"):
            await producer.send(b"y")


async def test_readers_need_no_prefix_of_their_role() -> None:
    """The subscriptions of a namespace have to begin with the role; a reader has drawn its name."""
    async with open_broker(settings=LOCKED) as cluster:
        rights = {"auth_policies": {"namespace_auth": {"app": ["produce", "consume"]}}}
        await store_policies(cluster.broker.session, {**rights, "subscription_auth_mode": "Prefix"})
        async with connect(cluster, token("app").decode()) as client:
            producer = await client.create_producer("t")
            await producer.send(b"x", key="k")
            async with await client.create_reader("t", start=daybook.EARLIEST) as reader:
                assert (await reader.receive()).value == b"x"
            async with await client.table_view("t") as view:
                assert view["k"] == b"x"
            for refused in (
                client.subscribe("t", "billing"),
                client.create_reader("t", name="billing"),
            ):
                with pytest.raises(daybook.AuthorizationError, match="begin with 'app'"):
                    await refused
            await client.subscribe("t", "app-billing")
