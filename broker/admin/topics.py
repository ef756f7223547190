"""REST of topics, their partitions and subscriptions; lookup over HTTP."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec
from starlette.routing import Route

from daybook.broker.admin import policies, topic_properties
from daybook.broker.admin.handling import BadBodyError, Call, Endpoints, Handler, Text
from daybook.broker.admin.message_ids import Start
from daybook.broker.admin.operations import Operations
from daybook.broker.errors import NotAllowedError, NotOwnerError, PreconditionError

OpsCall = Call[Operations]

_ROOT = "/admin/v2/persistent/{tenant}/{namespace}"
_NON_PERSISTENT = "/admin/v2/non-persistent/{tenant}/{namespace}"
_LOOKUPS = (
    "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}",
    "/lookup/v2/topic/non-persistent/{tenant}/{namespace}/{topic}",
)
# The paths below that topics without storage have, too.
_OF_BOTH = (
    "/partitioned",
    "/{topic}",
    "/{topic}/partitions",
    "/{topic}/unload",
    "/{topic}/stats",
    "/{topic}/internalStats",
    "/{topic}/partitioned-stats",
    "/{topic}/partitioned-internalStats",
    "/{topic}/subscriptions",
    "/{topic}/subscription/{subscription}",
    "/{topic}/permissions",
    "/{topic}/permissions/",
    "/{topic}/permissions/{role}",
    "/{topic}/{rest:path}",
)
_DIGITS_MAX = 19
_SHOWN_CHARS = 200
_METHODS = ("GET", "PUT", "POST", "DELETE")


def routes(endpoints: Endpoints[Operations]) -> list[Route]:
    table: dict[str, Mapping[str, Handler[Operations]]] = {
        "": {"GET": _topics},
        "/partitioned": {"GET": _partitioned_topics},
        "/{topic}": {"PUT": _create, "DELETE": _delete},
        "/{topic}/partitions": {
            "GET": _partitions,
            "PUT": _create_partitioned,
            "POST": _update_partitions,
            "DELETE": _delete_partitioned,
        },
        "/{topic}/unload": {"PUT": _unload},
        "/{topic}/compaction": {"GET": _compaction, "PUT": _compact},
        "/{topic}/explain": {"GET": _explain},
        "/{topic}/stats": {"GET": _stats},
        "/{topic}/internalStats": {"GET": _internal_stats},
        "/{topic}/partitioned-stats": {"GET": _partitioned_stats},
        "/{topic}/partitioned-internalStats": {"GET": _partitioned_internal_stats},
        "/{topic}/lastMessageId": {"GET": _last_message_id},
        "/{topic}/messageid/{time}": {"GET": _message_id_at},
        "/{topic}/getMessageIdByIndex": {"GET": _message_id_of_offset},
        "/{topic}/terminate": {"POST": _terminate},
        "/{topic}/terminate/partitions": {"POST": _terminate_partitions},
        "/{topic}/subscriptions": {"GET": _subscriptions},
        "/{topic}/subscription/{subscription}": {
            "PUT": _create_subscription,
            "DELETE": _delete_subscription,
        },
        "/{topic}/subscription/{subscription}/skip_all": {"POST": _skip_all},
        "/{topic}/subscription/{subscription}/resetcursor": {"POST": _reset},
        "/{topic}/subscription/{subscription}/resetcursor/{time}": {"POST": _reset_to_time},
        **{f"/{{topic}}/{path}": found for path, found in policies.of_topics().items()},
        **{f"/{{topic}}/{path}": found for path, found in topic_properties.of_topics().items()},
        "/{topic}/{rest:path}": dict.fromkeys(_METHODS, _not_offered),
    }
    return [
        *(endpoints.route(_ROOT + path, handlers) for path, handlers in table.items()),
        endpoints.route(_NON_PERSISTENT, {"GET": _non_persistent_topics}),
        *(endpoints.route(_NON_PERSISTENT + path, table[path]) for path in _OF_BOTH),
        *(endpoints.route(path, {"GET": _lookup}) for path in _LOOKUPS),
        *(endpoints.route(f"{path}/bundle", {"GET": _bundle}) for path in _LOOKUPS),
    ]


class LookupData(msgspec.Struct, rename="camel"):
    """The answer to a lookup.  Clients need all keys, even those without a value."""

    broker_url: str
    broker_url_tls: str
    http_url: str
    http_url_tls: str
    native_url: str


def _authoritative(call: OpsCall) -> bool:
    return call.flag("authoritative")


async def _lookup(call: OpsCall) -> object:
    if call.query("listenerName") or call.header("X-Pulsar-ListenerName"):
        raise PreconditionError("the broker do not have that listener")
    found = await call.parts.lookup(call.topic, authoritative=_authoritative(call))
    if found.redirect:
        raise NotOwnerError(
            "another broker knows the owner",
            http_url=found.http_url,
            http_url_tls=found.http_url_tls,
            authoritative=found.authoritative,
        )
    urls = found.urls(encrypted=call.encrypted)
    return LookupData(urls.service, urls.service_tls, urls.http, urls.http_tls, urls.service)


async def _bundle(call: OpsCall) -> object:
    bundle = await call.parts.policies.bundle_of(call.topic)
    return Text(bundle.rpartition("/")[2])


# -- topics


async def _topics(call: OpsCall) -> object:
    return await _page(call, "topics", partial(call.parts.topics, call.namespace))


async def _non_persistent_topics(call: OpsCall) -> object:
    here = call.flag("thisBroker")
    return await call.parts.non_persistent_topics(call.namespace, here=here)


async def _partitioned_topics(call: OpsCall) -> object:
    read = partial(call.parts.partitioned_topics, call.namespace, call.domain)
    return await _page(call, f"{call.domain} partitioned", read)


async def _page(call: OpsCall, kind: str, read: Callable[[], Awaitable[list[str]]]) -> object:
    after, limit = _full_name(call, call.query("after")), call.query("limit")
    key = f"{kind} {call.namespace}"
    return await call.parts.pages.page(key, read, after=after, limit=limit)


def _full_name(call: OpsCall, after: str) -> str:
    """Return the name behind which a page of the list begins; "" for the first page.

    A short name is one of the namespace of the list.  Raise PreconditionError for the name of a
    topic that cannot be in the list: the page would be the first one, or empty.
    """
    root = f"{call.domain}://{call.namespace}/"
    if not after:
        return ""
    full = after if "/" in after else root + after
    if not full.startswith(root):
        raise PreconditionError(
            f"after={after[:_SHOWN_CHARS]} is no topic of this list: give the last name of the page"
            f" before, such as {root}NAME, or NAME alone"
        )
    return full


async def _explain(call: OpsCall) -> object:
    return await call.parts.explain_topic(call.topic, authoritative=_authoritative(call))


async def _create(call: OpsCall) -> None:
    properties = await call.optional_body(dict[str, str])
    await call.parts.create_topic(call.topic, properties or {}, authoritative=_authoritative(call))


async def _delete(call: OpsCall) -> None:
    await call.parts.delete_topic(
        call.topic, force=call.flag("force"), authoritative=_authoritative(call)
    )


class _NewPartitioned(msgspec.Struct):
    partitions: int
    properties: dict[str, str] | None = None


async def _partitions(call: OpsCall) -> object:
    if call.flag("checkAllowAutoCreation"):
        count = await call.parts.policies.partitions(call.topic)
        return {"partitions": count, "deleted": False}
    return await call.parts.partitioned(call.topic)


async def _create_partitioned(call: OpsCall) -> None:
    try:
        new = _NewPartitioned(await call.body(int))
    except BadBodyError:
        new = await call.body(_NewPartitioned)
    await call.parts.create_partitioned(call.topic, new.partitions, new.properties)


async def _update_partitions(call: OpsCall) -> None:
    # There is one cluster, so both values of `updateLocalTopicOnly` mean the same.
    call.flag("updateLocalTopicOnly")
    await call.parts.update_partitions(call.topic, await call.body(int), force=call.flag("force"))


async def _delete_partitioned(call: OpsCall) -> None:
    await call.parts.delete_partitioned(call.topic, force=call.flag("force"))


async def _unload(call: OpsCall) -> None:
    await call.parts.unload_topic(call.topic, authoritative=_authoritative(call))


async def _compaction(call: OpsCall) -> object:
    return await call.parts.compaction(call.topic, authoritative=_authoritative(call))


async def _compact(call: OpsCall) -> None:
    await call.parts.compact(call.topic, authoritative=_authoritative(call))


async def _stats(call: OpsCall) -> object:
    return await call.parts.stats(call.topic, authoritative=_authoritative(call))


async def _internal_stats(call: OpsCall) -> object:
    return await call.parts.internal_stats(call.topic, authoritative=_authoritative(call))


async def _partitioned_stats(call: OpsCall) -> object:
    per_partition = call.flag("perPartition", default=True)
    return await call.parts.partitioned_stats(call.topic, per_partition=per_partition)


async def _partitioned_internal_stats(call: OpsCall) -> object:
    return await call.parts.partitioned_internal_stats(call.topic)


async def _last_message_id(call: OpsCall) -> object:
    return await call.parts.last_message_id(call.topic, authoritative=_authoritative(call))


async def _message_id_at(call: OpsCall) -> object:
    return await call.parts.message_id_at(
        call.topic, call.integer("time"), authoritative=_authoritative(call)
    )


async def _message_id_of_offset(call: OpsCall) -> object:
    index = call.query("index")
    if not (index.isascii() and index.isdecimal() and len(index) < _DIGITS_MAX):
        raise PreconditionError(f"index must be the offset of a message, not {index[:40]!r}")
    return await call.parts.message_id_of_offset(
        call.topic, int(index), authoritative=_authoritative(call)
    )


async def _terminate(call: OpsCall) -> object:
    return await call.parts.terminate(call.topic, authoritative=_authoritative(call))


async def _terminate_partitions(call: OpsCall) -> None:
    await call.parts.terminate_partitions(call.topic)


# -- subscriptions


async def _subscriptions(call: OpsCall) -> object:
    return await call.parts.subscriptions(call.topic, authoritative=_authoritative(call))


async def _create_subscription(call: OpsCall) -> None:
    await call.parts.create_subscription(
        call.topic,
        call.path("subscription"),
        await call.optional_body(Start) or Start.latest(),
        authoritative=_authoritative(call),
    )


async def _delete_subscription(call: OpsCall) -> None:
    await call.parts.delete_subscription(
        call.topic,
        call.path("subscription"),
        force=call.flag("force"),
        authoritative=_authoritative(call),
    )


async def _skip_all(call: OpsCall) -> None:
    await call.parts.skip_all(
        call.topic, call.path("subscription"), authoritative=_authoritative(call)
    )


async def _reset(call: OpsCall) -> None:
    await call.parts.reset_to(
        call.topic,
        call.path("subscription"),
        await call.body(Start),
        authoritative=_authoritative(call),
    )


async def _reset_to_time(call: OpsCall) -> None:
    await call.parts.reset_to_time(
        call.topic,
        call.path("subscription"),
        call.integer("time"),
        authoritative=_authoritative(call),
    )


async def _not_offered(call: OpsCall) -> None:
    raise NotAllowedError(f"this broker does not offer {call.path('rest')}")
