"""REST of subscriptions: what keeps one from delivering."""

from starlette.routing import Route

from daybook.broker.admin.handling import Call, Endpoints, Handler
from daybook.broker.admin.subscription_operations import SubscriptionOperations

SubscriptionCall = Call[SubscriptionOperations]

_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION = "/subscription/{subscription}"


def routes(endpoints: Endpoints[SubscriptionOperations]) -> list[Route]:
    table: dict[str, dict[str, Handler[SubscriptionOperations]]] = {
        f"{_SUBSCRIPTION}/explain": {"GET": _explain},
    }
    return [endpoints.route(_TOPIC + path, handlers) for path, handlers in table.items()]


def _authoritative(call: SubscriptionCall) -> bool:
    return call.flag("authoritative")


async def _explain(call: SubscriptionCall) -> object:
    return await call.parts.explain(
        call.topic, call.path("subscription"), authoritative=_authoritative(call)
    )
