"""Metrics, health and administration over HTTP: `/metrics`, `/healthz`, `/readyz`, and `admin`.

The bookie is healthy if it is registered and takes what it announces; if not, the answer is 503
with the reason.  It is ready if its own port answers the protocol within 2 s: a bookie that is not
healthy may still serve its entries.  Neither request needs a permission.
"""

from collections.abc import Awaitable, Callable, Sequence

import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from daybook.bookie.server.metrics import exposition
from daybook.wire.http import CONNECTIONS_MAX, HttpPort


def create_app(
    registry: CollectorRegistry,
    why_unhealthy: Callable[[], str],
    routes: Sequence[Route] = (),
    *,
    why_not_ready: Callable[[], Awaitable[str]],
) -> Starlette:
    """`why_unhealthy` and `why_not_ready` return "" while all is well; `routes` are `admin`'s."""

    async def metrics(_: Request) -> Response:
        return Response(exposition(registry), media_type=CONTENT_TYPE_LATEST)

    async def healthz(_: Request) -> Response:
        why = why_unhealthy()
        return PlainTextResponse(why or "ok", 503 if why else 200)

    async def readyz(_: Request) -> Response:
        why = await why_not_ready()
        return PlainTextResponse(
            f"the port does not serve: {why}" if why else "ok", 503 if why else 200
        )

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            *routes,
        ]
    )


async def serve_http(
    app: Starlette,
    host: str,
    port: int,
    *,
    connections_max: int = CONNECTIONS_MAX,
    on_accept_failed: Callable[[int, OSError], None] = lambda _port, _error: None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; report the port to `task_status` once it is open."""
    try:
        http = HttpPort(
            host, port, connections_max=connections_max, on_accept_failed=on_accept_failed
        )
    except OSError as error:
        raise OSError(error.errno, f"HTTP {error.strerror}") from error
    with http:
        async with trio.open_nursery() as nursery:
            await nursery.start(http.serve, app)
            task_status.started(http.port)
