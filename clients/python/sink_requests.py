"""Batches that are in topics exactly once, over the REST interface of brokers; for trio.

`sinks` has the same for code without trio, and an example.  `daybook.managed_ledger.sinks` has the
protocol, and what the outcomes mean.

A request that may be repeated is repeated, at one broker after the other, until the time is up.
The requests about one attempt are never repeated: an error ends the attempt, and the task begins
another one.  They share a connection, which ends with the attempt or by `disconnect`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlencode

import trio

from daybook.clients.python.admin import check_response, parse_admin_url
from daybook.clients.python.arguments import check_url
from daybook.clients.python.credentials import NOBODY, Basic, Credentials, Token
from daybook.clients.python.errors import (
    AdminError,
    AdminInDoubtError,
    AdminNotReadyError,
    BrokerError,
    InDoubtError,
    TlsError,
    UnavailableError,
)
from daybook.clients.python.http import HttpConnection, HttpResponse, http_request
from daybook.clients.python.tls import TlsOptions, is_encrypted, network_for
from daybook.wire.fields import U32
from daybook.wire.tcp import TcpNetwork
from daybook.wire.topics import url_encode
from daybook.wire.transport import Network

Json: TypeAlias = Any
BODY_BYTES_MAX = 4 << 20  # A larger body has one entry.
_ROOT = "/admin/v2/daybook/sinks"
_PAUSE_S = (0.1, 1.0)
_ABORTED_AT_ONCE = 1_000  # A broker refuses more in one request.
_ROLL_S = 10.0  # one request to roll forward waits so long
_BUSY = 429
_PARTS_MAX = 256  # A body of more parts is copied into one, which costs less.
_APPLIED = "APPLIED"
_BLOCKED = "BLOCKED"


class NotAppliedError(BrokerError):
    """The batch is committed, and not applied in the time that was given."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a query: `topics` has the number of partitions of each topic, 0 for none."""

    query_id: str
    batch_id: int
    topics: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Share:
    """The staging ledger of one task, closed."""

    attempt: str
    ledger_id: int
    rows: int
    hash: int
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    topic: str
    next: int  # the sequence id of the first entry of the next batch
    state: str  # pending, applied, blocked or skipped
    reason: str


@dataclass(frozen=True, slots=True)
class SinkState:
    name: str
    state: str  # NEW, COMMITTED, APPLIED or BLOCKED
    query_id: str
    checkpoint: str
    batch_id: int
    rows: int
    partitions: Sequence[PartitionState]


@dataclass(frozen=True, slots=True)
class Committed:
    outcome: str  # committed, done, replay or wait
    warning: str
    sink: SinkState


class StagingAttempt:
    """The staging of one task.  Any error ends it."""

    def __init__(
        self,
        network: Network,
        name: str,
        answer: Json,
        timeout_s: float,
        credentials: Credentials = NOBODY,
    ) -> None:
        self.attempt: str = answer["attempt"]
        self.ledger_id: int = answer["ledgerId"]
        self.entries = 0
        ((host, port),) = parse_admin_url(answer["url"])
        self._connection = HttpConnection(network, host, port)
        self._where = f"{host}:{port}"
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._path = f"{_ROOT}/{url_encode(name)}/attempts/{url_encode(self.attempt)}"

    async def append(self, topic: str, entries: Iterable[bytes]) -> None:
        """Append staged entries to one topic partition; they are durable when this returns."""
        body: list[bytes] = []
        size = 0
        for entry in entries:
            if body and size + U32.size + len(entry) > BODY_BYTES_MAX:
                await self._send(topic, body)
                body, size = [], 0
            body += (U32.pack(len(entry)), entry)
            size += len(entry) + U32.size
        if body:
            await self._send(topic, body)

    async def _send(self, topic: str, body: list[bytes]) -> None:
        query = urlencode({"topic": topic, "first": self.entries})
        parts = body if len(body) <= _PARTS_MAX else [b"".join(body)]
        answer = await self._call("PUT", f"{self._path}?{query}", parts)
        self.entries = answer["next"]

    async def close(self, *, rows: int, hash_: int) -> Share:
        """End the attempt."""
        body = _encoded({"rows": rows, "hash": hash_})
        try:
            answer = await self._call("POST", f"{self._path}/close", [body])
        finally:
            self.disconnect()
        return Share(
            answer["attempt"],
            answer["ledgerId"],
            answer["rows"],
            answer["hash"],
            answer["entries"],
            answer["bytes"],
        )

    async def give_up(self) -> None:
        """End the attempt without a share; the brokers delete later what it has staged."""
        try:
            with suppress(BrokerError):  # The broker gives it up by itself.
                await self._call("DELETE", self._path, None)
        finally:
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection; the attempt goes on over another one.  Idempotent."""
        self._connection.close()

    async def _call(self, method: str, target: str, body: Sequence[bytes] | None) -> Json:
        response = await self._connection.request(
            method,
            target,
            body,
            timeout_s=self._timeout_s,
            authorization=self._credentials.header(),
        )
        return _decoded(response, self._where)


class SinkRequests:
    """`admin_url` names brokers: `http://host:port`, or several hosts with commas between.

    `token` or `basic` prove who the client is, as for `daybook.connect`.
    """

    def __init__(
        self,
        admin_url: str,
        *,
        network: Network | None = None,
        timeout_s: float = 60.0,
        tls: TlsOptions | None = None,
        token: Token | None = None,
        basic: Basic | None = None,
    ) -> None:
        check_url("admin_url", admin_url)
        self._credentials = Credentials(token, basic)
        self._addresses = parse_admin_url(admin_url)
        self._scheme = admin_url.partition("://")[0]
        self._network = network_for(admin_url, tls, network or TcpNetwork())
        self._timeout_s = timeout_s  # for one request to one broker

    async def begin(self, name: str, batch: Batch) -> StagingAttempt:
        """Begin to stage the rows of one task."""
        body = {**_batch(batch)}
        # An attempt whose answer is lost stays open at its broker for a while, and harms nobody.
        answer, url = await self._repeat("POST", f"{_sink(name)}/attempts", body, self._timeout_s)
        answer["url"] = answer["url"] or url
        if is_encrypted(answer["url"]) != is_encrypted(url):
            raise TlsError(
                f"a broker stages at {answer['url']}, and this client uses {self._scheme}:// alone"
            )
        return StagingAttempt(self._network, name, answer, self._timeout_s, self._credentials)

    async def commit(
        self,
        name: str,
        batch: Batch,
        shares: Sequence[Share | None],
        *,
        checkpoint: str,
        once: bool = False,
        timeout_s: float = 120.0,
    ) -> Committed:
        """Commit the shares of all tasks, in their order.

        Raise ConflictError if the batch can never be committed so.  After any other error the
        outcome is unknown: call again with the same shares.
        """
        body = {**_batch(batch), **_shares(shares), "checkpoint": checkpoint, "once": once}
        answer, _ = await self._repeat("POST", f"{_sink(name)}/commit", body, timeout_s)
        return Committed(answer["outcome"], answer["warning"], _state(answer["sink"]))

    async def abort(
        self,
        name: str,
        batch: Batch,
        shares: Sequence[Share | None],
        *,
        checkpoint: str,
        timeout_s: float = 60.0,
    ) -> list[str]:
        """Abandon shares and delete them; return the attempts that a committed batch keeps."""
        kept: list[str] = []
        for start in range(0, len(shares), _ABORTED_AT_ONCE):
            some = _shares(shares[start : start + _ABORTED_AT_ONCE])
            body = {**_batch(batch), **some, "checkpoint": checkpoint}
            answer, _ = await self._repeat("POST", f"{_sink(name)}/abort", body, timeout_s)
            kept += answer["kept"]
        return kept

    async def roll_forward(
        self, name: str, *, timeout_s: float = 120.0, topics: Iterable[str] = ()
    ) -> SinkState:
        """Return when the last committed batch is applied.

        `topics` are those of the last batch: a sink that has stored nothing does not know who may
        ask for it.  Raise NotAppliedError if that takes longer, or an operator has to decide.
        """
        deadline_s, topics = trio.current_time() + timeout_s, tuple(topics)
        while True:
            left_s = max(0.0, deadline_s - trio.current_time())
            query = [("waitS", f"{min(_ROLL_S, left_s):.3f}"), *(("topic", t) for t in topics)]
            path = f"{_sink(name)}/roll-forward?{urlencode(query)}"
            found = _state((await self._repeat("POST", path, None, left_s + 1.0))[0])
            if found.state == _BLOCKED:
                raise NotAppliedError(
                    f"the batch {found.batch_id} of the sink {name} is committed and blocked"
                    f" ({_reasons(found)}): decide with `daybook sinks resolve {name}`"
                )
            if found.state not in (_BLOCKED, "COMMITTED"):
                return found
            if trio.current_time() >= deadline_s:
                raise NotAppliedError(
                    f"the batch {found.batch_id} of the sink {name} is committed and is being"
                    f" applied ({_reasons(found)}): the brokers go on with it, so start the query"
                    " again later"
                )

    async def state(self, name: str) -> SinkState:
        """Return the state of a sink.  Raise NotFoundError."""
        return _state((await self._repeat("GET", _sink(name), None, self._timeout_s))[0])

    async def forget(self, name: str) -> None:
        """Let the next commit come from any query; the last batch must be applied."""
        await self._repeat("POST", f"{_sink(name)}/forget", None, self._timeout_s)

    # -- requests

    async def _repeat(
        self, method: str, target: str, body: object, timeout_s: float
    ) -> tuple[Json, str]:
        """Ask one broker after the other until one answers; return the answer and its URL."""
        deadline_s = trio.current_time() + timeout_s
        data = None if body is None else _encoded(body)
        pause_s, index = _PAUSE_S[0], 0
        while True:
            host, port = self._addresses[index % len(self._addresses)]
            index += 1
            try:
                answer = await _exchange(
                    self._network,
                    host,
                    port,
                    method,
                    target,
                    data,
                    timeout_s=self._timeout_s,
                    credentials=self._credentials,
                )
            except AdminError as error:
                again = error.status == _BUSY or isinstance(error, AdminNotReadyError)
                if not again or trio.current_time() >= deadline_s:
                    raise
            except (UnavailableError, TlsError, InDoubtError, AdminInDoubtError):
                if trio.current_time() >= deadline_s:
                    raise
            else:
                return answer, f"{self._scheme}://{host}:{port}"
            await trio.sleep(min(pause_s, max(0.0, deadline_s - trio.current_time())))
            pause_s = min(2 * pause_s, _PAUSE_S[1])


async def _exchange(
    network: Network,
    host: str,
    port: int,
    method: str,
    target: str,
    body: bytes | None,
    *,
    timeout_s: float,
    credentials: Credentials,
) -> Json:
    response = await http_request(
        network,
        host,
        port,
        method,
        target,
        body,
        timeout_s=timeout_s,
        authorization=credentials.header(),
    )
    return _decoded(response, f"{host}:{port}")


def _decoded(response: HttpResponse, where: str) -> Json:
    check_response(response, where)
    return json.loads(response.body) if response.body else None


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def _sink(name: str) -> str:
    return f"{_ROOT}/{url_encode(name)}"


def _batch(batch: Batch) -> dict[str, object]:
    return {"queryId": batch.query_id, "batchId": batch.batch_id, "topics": dict(batch.topics)}


def _shares(shares: Sequence[Share | None]) -> dict[str, object]:
    return {
        "shares": [
            None if share is None else {"attempt": share.attempt, "ledgerId": share.ledger_id}
            for share in shares
        ]
    }


def _state(answer: Json) -> SinkState:
    return SinkState(
        answer["name"],
        answer["state"],
        answer["queryId"],
        answer["checkpoint"],
        answer["batchId"],
        answer["rows"],
        [
            PartitionState(each["topic"], each["next"], each["state"], each["reason"])
            for each in answer["partitions"]
        ],
    )


def _reasons(state: SinkState) -> str:
    waiting = [each for each in state.partitions if each.state in ("pending", "blocked")]
    shown = [f"{each.topic}: {each.reason or each.state}" for each in waiting[:3]]
    return "; ".join(shown) or "no topic partition is known"
