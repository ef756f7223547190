"""The HTTP application of a broker.

/admin/v2/...   Pulsar's REST      (`namespaces`, `topics`)
/lookup/v2/...  lookup over HTTP   (`topics`)
/metrics        Prometheus
/healthz        the process runs: 200 as long as it answers at all
/readyz         the broker can serve: its own service port answers the protocol within 2 s, and the
                broker is registered and in contact with the metadata store, and not every bookie
                refuses its credentials; otherwise 503 with the reason

/healthz and /readyz need no credentials.  /metrics needs some, and a right, if the settings say so
(`metrics_need_credentials`), and all others as `security.rights` says.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from daybook.broker.admin import bundles, namespaces, schemas, sinks, subscriptions, topics
from daybook.broker.admin.access import Access
from daybook.broker.admin.answer_budget import AnswerBudget
from daybook.broker.admin.body_budget import BodyBudget
from daybook.broker.admin.handling import (
    Endpoints,
    HeldResponse,
    reason,
    refused,
    with_encoded_paths,
    within,
)
from daybook.broker.admin.held_refusals import HeldRefusals
from daybook.broker.admin.operations import Operations
from daybook.broker.admin.sink_operations import SinkOperations
from daybook.broker.admin.subscription_operations import MESSAGE_BYTES_MAX, SubscriptionOperations
from daybook.broker.errors import BrokerError, NoRoomError
from daybook.broker.security.rights import right_of_path
from daybook.broker.service.shared_pace import SharedPace
from daybook.wire.logging import Log


def create_app(
    operations: Operations,
    metrics: Callable[[], Awaitable[bytes]],
    *,
    why_not_ready: Callable[[], Awaitable[str]],
    body_bytes_max: int,
    log: Log,
    of_sinks: SinkOperations | None = None,
    staged_bytes_max: int = 0,
    access: Access | None = None,
    metrics_need_credentials: bool = False,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    pace: SharedPace | None = None,
) -> ASGIApp:
    """Return the application.

    `why_not_ready` returns "" if the broker can serve: it probes the service port, too.
    `staged_bytes_max` bounds the bodies of requests about sinks, which have entries, and
    `message_bytes_max` an entry that is shown.  Refusals keep to the `pace`.
    """
    held, answers, bodies = HeldRefusals(pace), AnswerBudget(), BodyBudget()
    texts = AnswerBudget()  # Metrics have their own: long lists must not keep them out.

    async def show_metrics(request: Request) -> Response:
        if metrics_need_credentials and access is not None:
            try:
                await access.admit(request, right_of_path("GET", "/metrics"))
            except BrokerError as error:
                await held.hold(request, error)
                return refused(error)
        try:
            return await within(texts, request, make_metrics)
        except NoRoomError as error:
            return refused(error)

    async def make_metrics() -> HeldResponse:
        return HeldResponse(await metrics(), media_type=CONTENT_TYPE_LATEST)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        try:
            await operations.check_health()
        except BrokerError as error:
            return PlainTextResponse(str(error), 503)
        if why := await why_not_ready():
            return PlainTextResponse(why, 503)
        return PlainTextResponse("ok")

    endpoints = Endpoints(operations, body_bytes_max, log, access, held, answers, bodies)
    of_sinks_routes = (
        []
        if of_sinks is None
        else sinks.routes(
            Endpoints(
                of_sinks, max(body_bytes_max, staged_bytes_max), log, access, held, answers, bodies
            )
        )
    )
    of_schemas = Endpoints(operations.schemas, body_bytes_max, log, access, held, answers, bodies)
    shown = SubscriptionOperations(operations, message_bytes_max)
    of_subscriptions = Endpoints(shown, body_bytes_max, log, access, held, answers, bodies)
    app = Starlette(
        routes=[
            Route("/metrics", show_metrics),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/status.html", healthz),
            *bundles.routes(endpoints),
            *subscriptions.routes(of_subscriptions),  # before those that end with a route for all
            *namespaces.routes(endpoints),
            *of_sinks_routes,
            *schemas.routes(of_schemas),
            *topics.routes(endpoints),  # It ends with a route for all that is not offered.
        ],
        exception_handlers={HTTPException: _http_error},
    )
    app.router.redirect_slashes = False
    return with_encoded_paths(app)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:  # No route has the path.
        path = request.url.path
        return reason(404, f"this broker does not offer {request.method} {path}: check the path")
    return reason(error.status_code, error.detail)
