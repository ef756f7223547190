"""Metrics, health and administration over HTTP: `/metrics`, `/healthz`, and `admin`.

Healthy means that the bookie is registered and takes what it announces; else 503 and why not.
"""

from collections.abc import Callable, Sequence

import trio
from hypercorn.config import Config
from hypercorn.trio import serve  # pyright: ignore[reportUnknownVariableType]
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bookie.server.metrics import exposition


def create_app(
    registry: CollectorRegistry, why_unhealthy: Callable[[], str], routes: Sequence[Route] = ()
) -> Starlette:
    """`why_unhealthy` is empty while all is well; `routes` are those of `admin`."""

    async def metrics(_: Request) -> Response:
        return Response(exposition(registry), media_type=CONTENT_TYPE_LATEST)

    async def healthz(_: Request) -> Response:
        why = why_unhealthy()
        return PlainTextResponse(why or "ok", 503 if why else 200)

    return Starlette(routes=[Route("/metrics", metrics), Route("/healthz", healthz), *routes])


async def serve_http(
    app: Starlette,
    host: str,
    port: int,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; starts with the port."""
    config = Config()
    config.bind = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = 0.5
    async with trio.open_nursery() as nursery:
        try:
            bound: list[str] = await nursery.start(
                serve,  # pyright: ignore[reportUnknownArgumentType]
                app,
                config,
            )
        except* OSError as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise OSError(f"HTTP cannot listen on {host}:{port}: {error}") from error
        task_status.started(int(bound[0].rpartition(":")[2]))
