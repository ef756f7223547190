"""The admin requests of a bookie over HTTP, under the paths of Apache's bookies.

    GET, PUT  /api/v1/bookie/state/readonly    {"readOnly": true}: no new entries, across restarts
    GET       /api/v1/bookie/state             running, read-only, shutting down
    GET, PUT  /api/v1/bookie/gc                PUT: drop deleted ledgers and compact, soon
    GET       /api/v1/bookie/gc_details        the results of that since the start
    GET, PUT  /api/v1/bookie/scrub             the damage found; PUT: scrub everything now
    GET       /api/v1/bookie/limbo             ledgers in limbo, and why they are not copied yet

Apache's bookies do not have the last two.  A body that is too long or too late is refused.
"""

import json
from dataclasses import asdict

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from daybook.bookie.server.host import RunningBookie

_GET_PUT = ["GET", "PUT"]
_BODY_BYTES_MAX = 4096
_BODY_TIMEOUT_S = 10.0
_LISTED_MAX = 1000
_DETAILS = (
    "segments",
    "log_bytes",
    "live_bytes",
    "segments_removed",
    "bytes_removed",
    "bytes_rewritten",
    "segments_kept_damaged",
    "reclaim_failures",
)


def admin_routes(running: RunningBookie, nursery: trio.Nursery) -> list[Route]:
    """Return the routes; a scrub runs in `nursery`, because it outlives its request."""
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
        details = {name: statistics[name] for name in _DETAILS}
        return JSONResponse({**asdict(running.housekeeping.statistics()), **details})

    async def scrub(request: Request) -> Response:
        maintenance = store.maintenance
        if request.method == "PUT" and not maintenance.scrubbing:
            nursery.start_soon(maintenance.scrub)
        return JSONResponse([asdict(finding) for finding in maintenance.findings()])

    async def limbo(_: Request) -> Response:
        check = running.data_integrity
        ledgers = check.ledgers()
        listed = [{"ledger": each, "why": why} for each, why in list(ledgers.items())[:_LISTED_MAX]]
        return JSONResponse({**asdict(check.statistics()), "first_ledgers": listed})

    root = "/api/v1/bookie"
    return [
        Route(f"{root}/state/readonly", read_only, methods=_GET_PUT),
        Route(f"{root}/state", state),
        Route(f"{root}/gc", gc, methods=_GET_PUT),
        Route(f"{root}/gc_details", gc_details),
        Route(f"{root}/scrub", scrub, methods=_GET_PUT),
        Route(f"{root}/limbo", limbo),
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
    try:
        wanted = json.loads(body)["readOnly"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return wanted if isinstance(wanted, bool) else None
