"""Clients prove who they are on a connection: at its beginning, and when credentials expire."""

import base64
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
from trio.testing import MockClock

from daybook.wire.messages.registry import NO_ID
from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.security.test_basic import BCRYPT
from tests.harness.broker import Client, Cluster, open_broker
from tests.harness.clocks import EPOCH_MS

SECRET = bytes(range(32))
KEY = "data:;base64," + base64.b64encode(SECRET).decode()
SETTINGS = {
    "authentication": ["token"],
    "token_secret_key": KEY,
    "proxy_roles": ["proxy"],
    "auth_refresh_s": 30.0,
}
NOW_S = EPOCH_MS / 1000


def token(role: str = "alice", **claims: Any) -> bytes:
    return jwt.encode({"sub": role, **claims}, SECRET, "HS256").encode()


def greet(client: Client, data: bytes, method: str = "token", **more: Any) -> None:
    renews = more.pop("renews", False)
    client.tell(
        pb.CommandConnect(
            client_version="test",
            protocol_version=19,
            auth_method_name=method,
            auth_data=data,
            feature_flags=pb.FeatureFlags(supports_auth_refresh=renews),
            **more,
        )
    )


async def connected(cluster: Cluster, data: bytes, **more: Any) -> Client:
    client = await cluster.client(connect=False)
    greet(client, data, **more)
    await client.wait(pb.CommandConnected)
    return client


async def refusal(cluster: Cluster, data: bytes, **more: Any) -> int:
    """Return the code of the error, after which the broker has closed the connection."""
    client = await cluster.client(connect=False)
    greet(client, data, **more)
    (error,) = await client.wait(pb.CommandError)
    assert error.request_id == NO_ID
    assert data.decode(errors="replace") not in error.message or not data
    await client.wait_closed()
    return int(error.error)


def answer(client: Client, data: bytes, method: str = "token") -> None:
    response = pb.AuthData(auth_method_name=method, auth_data=data)
    client.tell(pb.CommandAuthResponse(response=response))


async def test_a_token_opens_the_session(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await connected(cluster, token())
        assert isinstance(await client.producer(), pb.CommandProducerSuccess)
        (topic,) = cluster.broker.topics.loaded.values()
        (producer,) = topic.producers.by_name.values()
        assert producer.connection.caller is not None
        assert producer.connection.caller.role == "alice"


async def test_wrong_credentials_are_refused_and_touch_nothing(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        for data, method in (
            (b"", "none"),
            (b"", ""),
            (b"x", "token"),
            (token(exp=NOW_S - 1), "token"),
            (jwt.encode({"sub": "a"}, bytes(32)).encode(), "token"),
            (b"alice:secret", "basic"),
        ):
            assert await refusal(cluster, data, method=method) == pb.AuthenticationError
        assert not cluster.broker.topics.loaded
        assert not cluster.broker.lookups.asked
        counts = cluster.broker.context.request_counts
        assert counts.refused[pb.BaseCommand.CONNECT, pb.AuthenticationError] == 6


async def test_a_command_before_the_answer_ends_the_connection(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"ann:{BCRYPT}\n")
    settings = {"authentication": ["basic"], "basic_file": str(users)}
    async with open_broker(settings=settings) as cluster:
        client = await cluster.client(connect=False)
        greet(client, b"ann:secret", "basic")
        client.tell(pb.CommandProducer(topic="t", producer_id=1, request_id=1))
        (error,) = await client.wait(pb.CommandError)
        assert error.error == pb.NotAllowedError
        await client.wait_closed()
        assert not cluster.broker.topics.loaded
        good = await connected(cluster, b"ann:secret", method="basic")
        assert not good.frames.closed


async def test_only_a_proxy_speaks_for_somebody_else(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        code = await refusal(cluster, token(), original_principal="ben")
        assert code == pb.AuthorizationError
        assert await refusal(cluster, token("proxy")) == pb.AuthorizationError
        client = await connected(cluster, token("proxy"), original_principal="ben")
        await client.producer()
        (topic,) = cluster.broker.topics.loaded.values()
        (producer,) = topic.producers.by_name.values()
        assert producer.connection.caller is not None
        assert producer.connection.caller.roles == ("proxy", "ben")


async def test_a_client_renews_credentials_that_expire(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await connected(cluster, token(exp=NOW_S + 20), renews=True)
        await client.producer()
        for number in (1, 2, 3):
            (challenge,) = await client.wait(pb.CommandAuthChallenge)
            assert challenge.challenge.auth_method_name == "token"
            assert challenge.challenge.auth_data == b"PulsarAuthRefresh"
            assert trio.current_time() == pytest.approx(20 * number, abs=2)
            client.send(number)
            await client.receipts(1)
            answer(client, token(exp=NOW_S + 20 * (number + 1)))
        await client.settle(15)
        assert not client.frames.closed


async def test_a_client_that_does_not_answer_is_closed_after_a_while(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await connected(cluster, token(exp=NOW_S + 20), renews=True)
        cluster.start(lambda: _pongs(client))
        (error,) = await client.wait(pb.CommandError)
        assert (error.request_id, error.error) == (NO_ID, pb.AuthenticationError)
        await client.wait_closed()
        assert trio.current_time() == pytest.approx(50, abs=2)


async def _pongs(client: Client) -> None:
    """Give signs of life, so that the broker does not close the connection for silence."""
    while not client.frames.closed:
        client.tell(pb.CommandPong())
        await trio.sleep(10)


@pytest.mark.parametrize(
    "renewed",
    [token("ben"), b"x", b""],
    ids=["another role", "wrong", "nothing"],
)
async def test_an_answer_that_proves_nothing_ends_the_session(
    renewed: bytes, autojump_clock: MockClock
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await connected(cluster, token(exp=NOW_S + 20), renews=True)
        await client.producer()
        await client.wait(pb.CommandAuthChallenge)
        answer(client, renewed)
        (error,) = await client.wait(pb.CommandError)
        assert (error.request_id, error.error) == (NO_ID, pb.AuthenticationError)
        await client.wait_closed()
        (topic,) = cluster.broker.topics.loaded.values()
        assert not topic.producers.by_name


async def test_a_client_that_repeats_its_old_token_is_asked_again(
    autojump_clock: MockClock,
) -> None:
    """Clients of an issuer keep a token until they think that it has expired: a moment too late."""
    async with open_broker(settings=SETTINGS) as cluster:
        client = await connected(cluster, token(exp=NOW_S + 20), renews=True)
        await client.producer()
        for renewed in (token(exp=NOW_S + 20), token(exp=NOW_S + 20), token(exp=NOW_S + 40)):
            await client.wait(pb.CommandAuthChallenge)
            answer(client, renewed)
        client.send(1)
        await client.receipts(1)
        assert trio.current_time() < 30
        await client.wait(pb.CommandAuthChallenge)
        assert trio.current_time() == pytest.approx(40, abs=2)
        assert not client.frames.closed


async def test_a_client_that_has_nothing_but_its_old_token_is_closed_soon(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await connected(cluster, token(exp=NOW_S + 20), renews=True)
        for _ in range(9):
            await client.wait(pb.CommandAuthChallenge)
            answer(client, token(exp=NOW_S + 20))
        (error,) = await client.wait(pb.CommandError)
        assert (error.request_id, error.error) == (NO_ID, pb.AuthenticationError)
        assert error.message == "the credentials have expired, and were not renewed in time"
        await client.wait_closed()
        assert trio.current_time() == pytest.approx(30, abs=2)
        assert await refusal(cluster, token(exp=NOW_S + 20)) == pb.AuthenticationError


async def test_a_client_that_answers_unasked_is_closed(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await connected(cluster, token(exp=NOW_S + 20), renews=True)
        await client.wait(pb.CommandAuthChallenge)
        for _ in range(3):
            answer(client, token(exp=NOW_S + 20))
        (error,) = await client.wait(pb.CommandError)
        assert error.error == pb.NotAllowedError
        await client.wait_closed()
        assert trio.current_time() == pytest.approx(20, abs=2)


async def test_a_client_that_cannot_renew_is_closed_when_its_credentials_expire(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await connected(cluster, token(exp=NOW_S + 20))
        (error,) = await client.wait(pb.CommandError)
        assert error.error == pb.AuthenticationError
        await client.wait_closed()
        assert trio.current_time() == pytest.approx(20, abs=2)


async def test_the_wall_clock_may_be_set_while_a_token_is_valid(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await connected(cluster, token(exp=NOW_S + 10_000))
        cluster.start(lambda: _pongs(client))
        await trio.sleep(5)
        cluster.broker.clock.offset_ms += 20_000_000
        await client.wait_closed()
        assert trio.current_time() < 60


async def test_an_anonymous_role_is_for_clients_without_credentials(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(settings={**SETTINGS, "anonymous_role": "anybody"}) as cluster:
        client = await connected(cluster, b"", method="none")
        assert not client.frames.closed
        assert await refusal(cluster, b"x") == pb.AuthenticationError


async def test_without_authentication_credentials_are_not_looked_at(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await connected(cluster, b"x", original_principal="ben")
        await client.producer()
        (topic,) = cluster.broker.topics.loaded.values()
        (producer,) = topic.producers.by_name.values()
        assert producer.connection.caller is None
