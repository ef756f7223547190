"""REST of sinks, which is Daybook's own: `managed_ledger.sinks` describes it for programs.

The path of a sink names no topic, so the rights of a request are those on the topics of the batch
or of the attempt, and on those to which the sink has written before.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.routing import Route

from daybook.broker.admin.handling import Call, Endpoints, Handler
from daybook.broker.admin.sink_bodies import (
    BatchBody,
    Rows,
    check_abort,
    check_batch,
    check_checkpoint,
    check_rows,
)
from daybook.broker.admin.sink_operations import SinkOperations
from daybook.broker.errors import NotAllowedError, PreconditionError
from daybook.broker.security.resources import Resource
from daybook.managed_ledger.sinks.batch import Demand

SinkCall = Call[SinkOperations]

_ROOT = "/admin/v2/daybook/sinks"
_ATTEMPT = "/{sink}/attempts/{attempt}"
_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/sinks"
_ROLL_FORWARD_S = "1"
_DIGITS_MAX = 18
_Targets = Callable[[SinkCall], Awaitable[Sequence[Resource]]]


class _Checkpoint(msgspec.Struct):
    checkpoint: str


class _Decision(msgspec.Struct, rename="camel"):
    skip_partition: str = ""
    abandon: bool = False


def routes(endpoints: Endpoints[SinkOperations]) -> list[Route]:
    table: dict[str, tuple[dict[str, Handler[SinkOperations]], _Targets]] = {
        "/{sink}": ({"GET": _show}, _of_sink),
        "/{sink}/attempts": ({"POST": _begin}, _of_batch),
        _ATTEMPT: ({"PUT": _append, "DELETE": _give_up}, _of_attempt),
        f"{_ATTEMPT}/close": ({"POST": _close}, _of_attempt),
        "/{sink}/commit": ({"POST": _commit}, _of_batch),
        "/{sink}/abort": ({"POST": _abort}, _of_abort),
        "/{sink}/roll-forward": ({"POST": _roll_forward}, _of_sink),
        "/{sink}/forget": ({"POST": _forget}, _of_decision),
        "/{sink}/move": ({"POST": _move}, _of_decision),
        "/{sink}/resolve": ({"POST": _resolve}, _of_decision),
    }
    return [
        endpoints.route(_ROOT, {"GET": _list}),
        *(
            endpoints.route(_ROOT + path, handlers, targets)
            for path, (handlers, targets) in table.items()
        ),
        endpoints.route(f"{_TOPIC}/admit", {"POST": _admit}),
        endpoints.route(f"{_TOPIC}/apply", {"POST": _apply}),
    ]


# -- on what a right is needed


async def _of_batch(call: SinkCall) -> Sequence[Resource]:
    topics = (await _batch(call)).topics
    return await call.parts.targets(call.path("sink"), topics)


async def _of_abort(call: SinkCall) -> Sequence[Resource]:
    body = await _batch(call)
    check_abort(body)
    return await call.parts.targets_of_abort(call.path("sink"), body)


async def _batch(call: SinkCall) -> BatchBody:
    body = await call.body(BatchBody)
    check_batch(call.path("sink"), body)
    return body


async def _of_sink(call: SinkCall) -> Sequence[Resource]:
    """The driver names the topics of its batch, because an empty sink does not know any."""
    return await call.parts.targets_of_state(call.path("sink"), call.queries("topic"))


async def _of_decision(call: SinkCall) -> Sequence[Resource]:
    """A topic of one's own gives no right to decide about a sink."""
    return await call.parts.targets(call.path("sink"), ())


async def _of_attempt(call: SinkCall) -> Sequence[Resource]:
    return call.parts.targets_of_attempt(call.path("sink"), call.path("attempt"))


# -- reading


async def _list(call: SinkCall) -> object:
    return await call.parts.list()


async def _show(call: SinkCall) -> object:
    return await call.parts.show(call.path("sink"))


# -- staging


async def _begin(call: SinkCall) -> object:
    return await call.parts.begin(call.path("sink"), await _batch(call), encrypted=call.encrypted)


async def _append(call: SinkCall) -> object:
    first = call.query("first")
    if not first.isdecimal() or len(first) > _DIGITS_MAX:
        raise PreconditionError(f"first must be a number, not {first[:_DIGITS_MAX]!r}")
    # An attempt that does not exist is refused before its body is read.
    call.parts.targets_of_attempt(call.path("sink"), call.path("attempt"))
    following = await call.parts.append(
        call.path("sink"),
        call.path("attempt"),
        call.query("topic"),
        int(first),
        await call.content(),
    )
    return {"next": following}


async def _close(call: SinkCall) -> object:
    body = await call.body(Rows)
    check_rows(body)
    return await call.parts.close(call.path("sink"), call.path("attempt"), body.rows, body.hash)


async def _give_up(call: SinkCall) -> None:
    await call.parts.give_up(call.path("sink"), call.path("attempt"))


# -- batches


async def _commit(call: SinkCall) -> object:
    return await call.parts.commit(call.path("sink"), await _batch(call))


async def _abort(call: SinkCall) -> object:
    body = await _batch(call)
    check_abort(body)  # Without authorization nobody has asked for the targets.
    return await call.parts.abort(call.path("sink"), body)


async def _roll_forward(call: SinkCall) -> object:
    return await call.parts.roll_forward(call.path("sink"), _wait_s(call))


def _wait_s(call: SinkCall) -> float:
    text = call.query("waitS", _ROLL_FORWARD_S)
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s < float("inf"):
        raise PreconditionError(f"waitS must be a number of seconds, not {text!r}")
    return wait_s


# -- decisions


async def _forget(call: SinkCall) -> None:
    await call.parts.forget(call.path("sink"))


async def _move(call: SinkCall) -> None:
    checkpoint = (await call.body(_Checkpoint)).checkpoint
    check_checkpoint(checkpoint)
    await call.parts.move(call.path("sink"), checkpoint)


async def _resolve(call: SinkCall) -> object:
    decision = await call.body(_Decision)
    if bool(decision.skip_partition) == decision.abandon:
        raise NotAllowedError("name one partition to be skipped, or abandon the whole batch")
    if decision.abandon:
        return await call.parts.abandon_batch(call.path("sink"))
    return await call.parts.skip(call.path("sink"), decision.skip_partition)


# -- between brokers


async def _admit(call: SinkCall) -> object:
    demand = await call.body(Demand)
    parts = call.parts
    return await parts.on_owner(
        call.topic,
        lambda topic: parts.admit_here(topic, demand),
        authoritative=call.flag("authoritative"),
    )


async def _apply(call: SinkCall) -> object:
    wait_s, parts = _wait_s(call), call.parts
    return await parts.on_owner(
        call.topic,
        lambda topic: parts.apply_here(topic, wait_s),
        authoritative=call.flag("authoritative"),
    )
