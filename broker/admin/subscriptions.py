"""REST of the backlog of subscriptions, of single messages, and of what is stored of a topic.

Requests that acknowledge messages take `dryRun=true`: they answer with what they would acknowledge,
and change nothing.  Without it they answer 204, as Pulsar does.
"""

import re

from starlette.routing import Route

from daybook.broker.admin.handling import Call, Endpoints, Handler
from daybook.broker.admin.message_ids import Start
from daybook.broker.admin.subscription_operations import SubscriptionOperations
from daybook.broker.dispatch.clearing import Cleared
from daybook.broker.errors import PreconditionError

SubscriptionCall = Call[SubscriptionOperations]

_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_SUBSCRIPTION = "/subscription/{subscription}"
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def routes(endpoints: Endpoints[SubscriptionOperations]) -> list[Route]:
    of_topics: dict[str, dict[str, Handler[SubscriptionOperations]]] = {
        f"{_SUBSCRIPTION}/explain": {"GET": _explain},
        f"{_SUBSCRIPTION}/analyzeBacklog": {"POST": _analyze_backlog},
        f"{_SUBSCRIPTION}/properties": {"GET": _properties, "PUT": _set_properties},
        f"{_SUBSCRIPTION}/skip/{{messages}}": {"POST": _skip},
        f"{_SUBSCRIPTION}/skip_all": {"POST": _skip_all},
        f"{_SUBSCRIPTION}/expireMessages/{{seconds}}": {"POST": _expire},
        f"{_SUBSCRIPTION}/expireMessages": {"POST": _expire_to},
        f"{_SUBSCRIPTION}/position/{{number}}": {"GET": _peek},
        "/all_subscription/expireMessages/{seconds}": {"POST": _expire_all},
        "/examinemessage": {"GET": _examine},
        "/ledger/{ledger}/entry/{entry}": {"GET": _entry},
        "/internal-info": {"GET": _internal_info},
        "/backlog": {"GET": _offline_backlog},
        "/backlogSize": {"PUT": _backlog_size},
        "/truncate": {"DELETE": _truncate},
        "/trim": {"POST": _trim},
    }
    of_namespaces: dict[str, dict[str, Handler[SubscriptionOperations]]] = {
        "/clearBacklog": {"POST": _clear},
        "/clearBacklog/{subscription}": {"POST": _clear_one},
        "/unsubscribe/{subscription}": {"POST": _unsubscribe},
        "/{bundle}/clearBacklog": {"POST": _clear_bundle},
        "/{bundle}/clearBacklog/{subscription}": {"POST": _clear_one_of_bundle},
        "/{bundle}/unsubscribe/{subscription}": {"POST": _unsubscribe_bundle},
    }
    return [
        *(endpoints.route(_TOPIC + path, handlers) for path, handlers in of_topics.items()),
        *(endpoints.route(_NAMESPACE + path, handlers) for path, handlers in of_namespaces.items()),
    ]


def _authoritative(call: SubscriptionCall) -> bool:
    return call.flag("authoritative")


def _dry_run(call: SubscriptionCall) -> bool:
    return call.flag("dryRun")


def _answer(call: SubscriptionCall, cleared: Cleared) -> Cleared | None:
    return cleared if _dry_run(call) else None


# -- looking at a subscription


async def _explain(call: SubscriptionCall) -> object:
    return await call.parts.explain(
        call.topic, call.path("subscription"), authoritative=_authoritative(call)
    )


async def _analyze_backlog(call: SubscriptionCall) -> object:
    return await call.parts.analyze_backlog(
        call.topic, call.path("subscription"), authoritative=_authoritative(call)
    )


async def _properties(call: SubscriptionCall) -> object:
    return await call.parts.properties(
        call.topic, call.path("subscription"), authoritative=_authoritative(call)
    )


async def _set_properties(call: SubscriptionCall) -> None:
    await call.parts.set_properties(
        call.topic,
        call.path("subscription"),
        await call.optional_body(dict[str, str]) or {},
        authoritative=_authoritative(call),
    )


# -- acknowledging


async def _skip(call: SubscriptionCall) -> object:
    cleared = await call.parts.skip(
        call.topic,
        call.path("subscription"),
        call.integer("messages"),
        dry_run=_dry_run(call),
        authoritative=_authoritative(call),
    )
    return _answer(call, cleared)


async def _skip_all(call: SubscriptionCall) -> object:
    name, authoritative = call.path("subscription"), _authoritative(call)
    if not _dry_run(call):
        await call.parts.clear(call.topic, name, authoritative=authoritative)
        return None
    return await call.parts.skip_all(call.topic, name, dry_run=True, authoritative=authoritative)


async def _expire(call: SubscriptionCall) -> object:
    cleared = await call.parts.expire(
        call.topic,
        call.path("subscription"),
        call.integer("seconds"),
        dry_run=_dry_run(call),
        authoritative=_authoritative(call),
    )
    return _answer(call, cleared)


async def _expire_to(call: SubscriptionCall) -> object:
    cleared = await call.parts.expire_to(
        call.topic,
        call.path("subscription"),
        await call.body(Start),
        dry_run=_dry_run(call),
        authoritative=_authoritative(call),
    )
    return _answer(call, cleared)


async def _expire_all(call: SubscriptionCall) -> None:
    await call.parts.expire_all(
        call.topic, call.integer("seconds"), authoritative=_authoritative(call)
    )


# -- single messages


async def _peek(call: SubscriptionCall) -> object:
    return await call.parts.peek(
        call.topic,
        call.path("subscription"),
        call.integer("number"),
        authoritative=_authoritative(call),
    )


async def _examine(call: SubscriptionCall) -> object:
    start, number = call.query("initialPosition", "latest"), call.query("messagePosition", "1")
    if start not in ("earliest", "latest"):
        raise PreconditionError(f"initialPosition must be earliest or latest, not {start!r}")
    if _NUMBER.fullmatch(number) is None:
        raise PreconditionError(f"messagePosition must be a number, not {number[:40]!r}")
    return await call.parts.examine(
        call.topic,
        earliest=start == "earliest",
        number=int(number),
        authoritative=_authoritative(call),
    )


async def _entry(call: SubscriptionCall) -> object:
    return await call.parts.entry(
        call.topic,
        call.integer("ledger"),
        call.integer("entry"),
        authoritative=_authoritative(call),
    )


# -- what is stored of a topic


async def _internal_info(call: SubscriptionCall) -> object:
    return await call.parts.internal_info(call.topic, authoritative=_authoritative(call))


async def _offline_backlog(call: SubscriptionCall) -> object:
    return await call.parts.offline_backlog(call.topic, authoritative=_authoritative(call))


async def _backlog_size(call: SubscriptionCall) -> object:
    start = await call.body(Start)
    return await call.parts.backlog_size(call.topic, start, authoritative=_authoritative(call))


async def _truncate(call: SubscriptionCall) -> None:
    await call.parts.truncate(call.topic, authoritative=_authoritative(call))


async def _trim(call: SubscriptionCall) -> None:
    await call.parts.trim(call.topic, authoritative=_authoritative(call))


# -- all topics of a namespace, or of a bundle


async def _clear(call: SubscriptionCall) -> None:
    await call.parts.clear_namespace(call.namespace)


async def _clear_one(call: SubscriptionCall) -> None:
    await call.parts.clear_namespace(call.namespace, subscription=call.path("subscription"))


async def _unsubscribe(call: SubscriptionCall) -> None:
    await call.parts.unsubscribe_namespace(call.namespace, call.path("subscription"))


async def _clear_bundle(call: SubscriptionCall) -> None:
    await call.parts.clear_namespace(call.namespace, call.path("bundle"))


async def _clear_one_of_bundle(call: SubscriptionCall) -> None:
    bundle, subscription = call.path("bundle"), call.path("subscription")
    await call.parts.clear_namespace(call.namespace, bundle, subscription)


async def _unsubscribe_bundle(call: SubscriptionCall) -> None:
    bundle, subscription = call.path("bundle"), call.path("subscription")
    await call.parts.unsubscribe_namespace(call.namespace, subscription, bundle)
