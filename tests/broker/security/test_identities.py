"""Sequences of commands with identities that change: a model says what each connection may do.

Hypothesis draws the steps of up to three connections: a CONNECT, once or again, with credentials of
any kind, answers to challenges that were asked for or not, requests between them, and time, in
which tokens expire.  The model knows which role a connection has proven, and whether it is alive.
No step gives a connection more than its role has, and nothing is loaded for one without a role.
"""

from dataclasses import dataclass, field

import jwt
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from trio.testing import MockClock

from daybook.broker.security.rights import COMMANDS
from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.security.test_rights import (
    ALLOWED,
    LOCKED,
    ROLES,
    refused,
    requests,
    store_policies,
)
from tests.broker.security.test_sessions import answer, greet, token
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

T = pb.BaseCommand
LASTS_S = 20.0
WRONG = ("", "nonsense", "of another key", "expired")
REFRESH_S = 30.0
CUT_S = 5.0  # A client that is refused is cut at once, not when its next token expires.
LATE_S = 15.0  # One that answers with an expired token is asked again for ten seconds.
ASKED = (T.LOOKUP, T.PRODUCER, T.SUBSCRIBE, T.GET_SCHEMA)


def credentials(name: str, now_s: float, *, short: bool) -> bytes:
    match name:
        case "" | "nonsense":
            return name.encode()
        case "of another key":
            return jwt.encode({"sub": "root"}, bytes(40), "HS256").encode()
        case "expired":
            return token("root", exp=now_s - 1)
        case role:
            return token(role, **({"exp": now_s + LASTS_S} if short else {}))


@dataclass
class Connection:
    """A client, and what the model knows of it."""

    client: Client
    role: str = ""
    alive: bool = True
    late: bool = False  # its last answer was an expired token
    renews: bool = False
    expires_s: float | None = None
    opened: set[int] = field(default_factory=set[int])


class World:
    """Carries out the steps, and compares."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.connections: list[Connection] = []
        self.secrets: list[bytes] = []

    async def step(self, which: int, what: str, name: str, flag: bool) -> None:
        if what == "wait":
            await trio.sleep(1.0 + which * 12.0)
            await self._check_expiries()
            return
        while len(self.connections) <= which:
            client = await self._cluster.client(connect=False)
            self.connections.append(Connection(client))
        connection = self.connections[which]
        match what:
            case "connect":
                await self._connect(connection, name, renews=flag)
            case "answer":
                await self._answer(connection, name)
            case "ask":
                await self._ask(connection, ASKED[which % len(ASKED)], flag)
            case _:
                connection.client.tell(pb.CommandPing())
                await connection.client.settle()
                if not connection.role:
                    connection.alive = False
        await self._check(connection)

    @property
    def _now_s(self) -> float:
        return self._cluster.broker.clock.now_ms() / 1000

    def _made(self, name: str, *, short: bool) -> bytes:
        made = credentials(name, self._now_s, short=short)
        if made not in (b"", b"nonsense"):
            self.secrets.append(made)
        return made

    async def _connect(self, connection: Connection, name: str, *, renews: bool) -> None:
        data = self._made(name, short=renews)
        greet(connection.client, data, renews=renews)
        await connection.client.settle()
        first = connection.alive and not connection.role
        if not first or name in WRONG:
            connection.alive = False
            return
        connection.role, connection.renews = name, renews
        connection.expires_s = self._now_s + LASTS_S if renews else None
        assert connection.client.bodies(pb.CommandConnected), "a right token is refused"

    async def _answer(self, connection: Connection, name: str) -> None:
        asked = bool(connection.client.bodies(pb.CommandAuthChallenge))
        answer(connection.client, self._made(name, short=True))
        await connection.client.settle()
        if not (connection.alive and asked and name == connection.role):
            connection.late = connection.alive and asked and name == "expired"
            connection.alive = False
            return
        connection.expires_s = self._now_s + LASTS_S
        connection.client.got.clear()

    async def _ask(self, connection: Connection, command: int, again: bool) -> None:
        request, kind = requests()[command]
        client = connection.client
        if command in connection.opened:
            return
        request.request_id = client.request_id()
        if again:
            client.tell(pb.CommandPing())
        client.tell(request)
        await client.settle(0.2)
        answers = [
            body
            for each in (kind, pb.CommandError)
            for body in client.bodies(each)
            if body.request_id == request.request_id
        ]
        if not connection.role or not connection.alive:
            assert not answers, "a client without a role is answered"
            connection.alive = False
            return
        (got,) = answers
        assert refused(got) is (connection.role not in ALLOWED[COMMANDS[command]])
        connection.opened.add(command)

    async def _check_expiries(self) -> None:
        for connection in self.connections:
            expires_s = connection.expires_s
            if not connection.alive or expires_s is None or self._now_s < expires_s:
                continue
            assert connection.client.frames.closed or connection.client.bodies(
                pb.CommandAuthChallenge
            ), "a token has expired, and its client is not asked"
            if self._now_s >= expires_s + REFRESH_S:
                connection.alive = False
            await self._check(connection)

    async def _check(self, connection: Connection) -> None:
        client = connection.client
        if not connection.alive:
            with trio.fail_after(LATE_S if connection.late else CUT_S):
                await client.wait_closed()
        elif connection.role:
            assert not client.frames.closed, client.frames.close_reason
        if not any(each.role in ROLES for each in self.connections):
            assert not self._cluster.broker.topics.loaded, "a topic is loaded for nobody"
        for body in client.bodies(pb.CommandError):
            assert not any(secret.decode() in body.message for secret in self.secrets)


Step = tuple[int, str, str, bool]
NAMES = st.sampled_from([*ROLES, *WRONG])
STEP = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["connect", "connect", "answer", "ask", "ask", "wait", "ping"]),
    NAMES,
    st.booleans(),
)
EXPIRED: SearchStrategy[list[Step]] = st.tuples(st.sampled_from(list(ROLES)), NAMES).map(
    # A connection whose token has expired answers the challenge with credentials of any kind.
    lambda names: [
        (0, "connect", names[0], True),
        (2, "wait", "", False),
        (0, "answer", names[1], False),
    ]
)
STEPS: SearchStrategy[list[Step]] = st.builds(
    lambda first, then: [*first, *then],
    st.one_of(st.just(list[Step]()), EXPIRED),
    st.lists(STEP, max_size=20),
)


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(STEPS)
def test_a_connection_has_the_role_that_it_has_proven_and_no_other(
    steps: list[Step],
) -> None:
    trio.run(_play, steps, clock=MockClock(autojump_threshold=0))


async def _play(steps: list[Step]) -> None:
    # A greeting that nobody sends is cut in time; here only the order of commands counts.
    patient = {"connect_timeout_s": 1e6, "keep_alive_s": 1e6}
    async with open_broker(settings={**LOCKED, **patient}) as cluster:
        await store_policies(cluster.broker.session)
        world = World(cluster)
        for step in steps:
            await world.step(*step)
        witness = await cluster.client(connect=False)
        greet(witness, token("root"))
        await witness.wait(pb.CommandConnected)
        await witness.producer(7, topic=f"{TOPIC}-witness")
