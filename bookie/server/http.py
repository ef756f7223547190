"""The HTTP service of a bookie: metrics, health, and the admin requests of Apache's bookies.

    GET       /metrics      for Prometheus; the values are read at each request
    GET       /healthz      200 if it is registered and takes what it announces, else 503 and why
    GET       /readyz       200 if its own port answers the protocol within 2 s, else 503 and why

    GET, PUT  /api/v1/bookie/state/readonly    {"readOnly": true}: no new entries, across restarts
    GET       /api/v1/bookie/state             running, read-only, shutting down
    GET, PUT  /api/v1/bookie/gc                PUT: drop deleted ledgers and compact, soon
    GET       /api/v1/bookie/gc_details        the results of that since the start
    GET, PUT  /api/v1/bookie/scrub             the damage found; PUT: scrub everything now
    GET       /api/v1/bookie/limbo             ledgers in limbo, and why they are not copied yet

A bookie that is not healthy may be ready: it still serves its entries.  Apache's bookies do not
have the last two admin requests.  A GET needs no permission.  A PUT to a bookie with
`authentication = "require"` needs an allowed certificate.  A body that is too long or arrives too
late is refused.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, fields
from functools import partial

import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.entrance import Door
from daybook.bookie.server.host import RunningBookie
from daybook.wire.errors import TlsError
from daybook.wire.http import CERTIFICATE, HttpPort
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.tls import TlsServer
from daybook.wire.transport import PeerCertificate

_ADMIN_ROOT = "/api/v1/bookie"
_GET_PUT = ["GET", "PUT"]
_LOOKS = ("GET", "HEAD")
_BODY_BYTES_MAX = 4096
_BODY_TIMEOUT_S = 10.0
_LISTED_MAX = 1000  # ledgers in limbo
_STORE_DETAILS = (
    "segments",
    "log_bytes",
    "live_bytes",
    "segments_removed",
    "bytes_removed",
    "bytes_rewritten",
    "segments_kept_damaged",
    "reclaim_failures",
)
_METRIC_PREFIX = "daybook_bookie_"
_COUNTERS = {
    "attempts_failed",
    "bytes_added",
    "bytes_copied",
    "bytes_removed",
    "bytes_rewritten",
    "bytes_scrubbed",
    "checkpoints",
    "collections",
    "collections_failed",
    "commits",
    "connections_cut",
    "connections_made",
    "connections_refused",
    "handshakes_failed",
    "peers_authenticated",
    "peers_refused",
    "peers_without_credentials",
    "tls_connections_made",
    "drops_failed",
    "entries_added",
    "entries_copied",
    "ledgers_cleared",
    "ledgers_dropped",
    "reclaim_failures",
    "scrub_failures",
    "scrubs",
    "segments_removed",
    "sessions_lost",
    "tombstones_ended",
}


class StatisticsCollector(Collector):
    """A collector that exports the numeric fields of records, which are dataclasses.

    `sources` has the functions that return the records, by the name of their group.
    """

    def __init__(self, sources: dict[str, Callable[[], object]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for group, source in self._sources.items():
            record = source()
            for field in fields(record):  # type: ignore[arg-type]
                value = getattr(record, field.name)
                if not isinstance(value, int | float):
                    continue
                name = f"{_METRIC_PREFIX}{group}_{field.name}"
                words = field.name.replace("_", " ")
                family = CounterMetricFamily if field.name in _COUNTERS else GaugeMetricFamily
                yield family(name, f"{group}: {words}", value=float(value))


def create_registry(sources: dict[str, Callable[[], object]]) -> CollectorRegistry:
    """Return a registry of its own, not that of the process: one process can run many bookies."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatisticsCollector(sources))
    return registry


def create_app(
    running: RunningBookie, nursery: trio.Nursery, door: Door | None = None
) -> Starlette:
    """Return the application; a scrub runs in `nursery`, because it outlives its request.

    `door` says who may change something; without it, everybody may.
    """
    registry = create_registry(running.sources())

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def healthz(_: Request) -> Response:
        why = running.why_unhealthy()
        return PlainTextResponse(why or "ok", 503 if why else 200)

    async def readyz(_: Request) -> Response:
        why = await running.probe.why_not_ready()
        return PlainTextResponse(
            f"the port does not serve: {why}" if why else "ok", 503 if why else 200
        )

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            *_admin_routes(running, nursery),
        ],
        middleware=[Middleware(_OnlyAllowed, door=door or Door())],
    )


class _OnlyAllowed:
    """Refuses requests that change something to those who may not."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in _LOOKS:
            certificate: PeerCertificate | None = scope.get("state", {}).get(CERTIFICATE)
            if not self._door.may_change(certificate):
                refusal = PlainTextResponse(
                    "this bookie asks its clients who they are: show an allowed certificate at its"
                    " https_port (allowed_certificates, tls_client_certificates)",
                    403,
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _admin_routes(running: RunningBookie, nursery: trio.Nursery) -> list[Route]:
    store = running.store

    async def read_only(request: Request) -> Response:
        if request.method == "PUT":
            body = await _body(request)
            if body is None:
                return PlainTextResponse("the body is too long, or does not come", 413)
            wanted = _wanted(body)
            if wanted is None:
                return PlainTextResponse('send {"readOnly": true} or false', 400)
            await running.read_only_state.change(wanted)
        return JSONResponse({"readOnly": not store.writable})

    async def state(_: Request) -> Response:
        return JSONResponse(
            {
                "running": True,
                "readOnly": not store.writable,
                "shuttingDown": False,
                "availableForHighPriorityWrites": store.takes_recovery,
            }
        )

    async def gc(request: Request) -> Response:
        if request.method == "PUT":
            running.housekeeping.want_room()
        return JSONResponse({"is_in_force_gc": str(running.housekeeping.busy).lower()})

    async def gc_details(_: Request) -> Response:
        statistics = asdict(store.statistics())
        details = {name: statistics[name] for name in _STORE_DETAILS}
        return JSONResponse({**asdict(running.garbage_collector.statistics()), **details})

    async def scrub(request: Request) -> Response:
        maintenance = store.maintenance
        if request.method == "PUT" and not maintenance.scrubbing:
            nursery.start_soon(maintenance.scrub)
        return JSONResponse([asdict(finding) for finding in maintenance.findings()])

    async def limbo(_: Request) -> Response:
        check = running.data_integrity
        ledgers = list(check.ledgers().items())
        listed = [{"ledger": each, "why": why} for each, why in ledgers[:_LISTED_MAX]]
        return JSONResponse({**asdict(check.statistics()), "first_ledgers": listed})

    return [
        Route(f"{_ADMIN_ROOT}/state/readonly", read_only, methods=_GET_PUT),
        Route(f"{_ADMIN_ROOT}/state", state),
        Route(f"{_ADMIN_ROOT}/gc", gc, methods=_GET_PUT),
        Route(f"{_ADMIN_ROOT}/gc_details", gc_details),
        Route(f"{_ADMIN_ROOT}/scrub", scrub, methods=_GET_PUT),
        Route(f"{_ADMIN_ROOT}/limbo", limbo),
    ]


async def _body(request: Request) -> bytes | None:
    """Return the body, or None if it is too long or does not arrive in time."""
    body = b""
    with trio.move_on_after(_BODY_TIMEOUT_S):
        async for chunk in request.stream():
            body += chunk
            if len(body) > _BODY_BYTES_MAX:
                return None
        return body
    return None


def _wanted(body: bytes) -> bool | None:
    """Return the `readOnly` of a body, or None if the body is malformed."""
    try:
        wanted = json.loads(body)["readOnly"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return wanted if isinstance(wanted, bool) else None


async def serve_http_ports(
    app: Starlette,
    config: BookieConfig,
    tls: TlsServer | None,
    log: Log,
    on_accept_failed: Callable[[int, OSError], None] = lambda _port, _error: None,
    *,
    task_status: trio.TaskStatus[tuple[int | None, int | None]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the HTTP ports of the settings, without TLS and with it, until cancelled.

    Report both ports to `task_status` once they are open, None for one that there is not.
    """
    limited = LogLimiter(log)

    def handshake_failed(peer: str, error: TlsError) -> None:
        limited.info(
            "the TLS handshake of an HTTP client has failed",
            kind=str(error),
            peer=peer,
            why=str(error),
        )

    open_port = partial(
        _open_port,
        config.host,
        connections_max=config.http_connections_max,
        on_accept_failed=on_accept_failed,
    )
    with ExitStack() as ports:
        http = https = None
        if config.http_port >= 0:
            http = ports.enter_context(open_port(config.http_port))
        if config.https_port >= 0:
            assert tls is not None
            https = ports.enter_context(
                open_port(
                    config.https_port,
                    tls=tls,
                    on_handshake_failed=handshake_failed,
                    beside=http,
                )
            )
        async with trio.open_nursery() as nursery:
            for port in (http, https):
                if port is not None:
                    await nursery.start(port.serve, app)
            task_status.started(
                (None if http is None else http.port, None if https is None else https.port)
            )


def _open_port(
    host: str,
    port: int,
    *,
    connections_max: int,
    on_accept_failed: Callable[[int, OSError], None],
    tls: TlsServer | None = None,
    on_handshake_failed: Callable[[str, TlsError], None] = lambda _peer, _error: None,
    beside: HttpPort | None = None,
) -> HttpPort:
    try:
        return HttpPort(
            host,
            port,
            connections_max=connections_max,
            on_accept_failed=on_accept_failed,
            tls=tls,
            on_handshake_failed=on_handshake_failed,
            beside=beside,
        )
    except OSError as error:
        raise OSError(error.errno, f"HTTP {error.strerror}") from error
