"""Acknowledges messages of a subscription on behalf of an administrator: skip, expire, clear.

Each of them is planned first, and then carried out.  A plan says how much it acknowledges, so an
administrator can look at it without carrying it out.  A plan is for the entries that exist when it
is made: what is published later is never acknowledged by it.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec
import trio

from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.errors import PreconditionError, UnavailableError
from daybook.broker.topics.topic_log import translated
from daybook.managed_ledger.position import Position
from daybook.wire.batch import count_messages

_READ_ENTRIES = 1_000
_READ_BYTES = 4 << 20


class Cleared(msgspec.Struct, frozen=True, rename="camel"):
    """How much a plan acknowledges, and the entry up to which it does, or None."""

    messages: int
    entries: int
    bytes: int
    through: str | None


@dataclass(slots=True)
class Plan:
    """Acknowledge everything up to `through`, and leave `pending` messages of the entry behind."""

    through: Position | None = None
    part: tuple[Position, int] | None = None
    messages: int = 0
    entries: int = 0
    bytes: int = 0
    expires: bool = False  # because of the age of the messages

    @property
    def cleared(self) -> Cleared:
        through = None if self.through is None else str(self.through)
        return Cleared(self.messages, self.entries, self.bytes, through)


async def plan_skip(subscription: Subscription, messages: int) -> Plan:
    """Plan to acknowledge the first `messages` messages that are not acknowledged."""
    if messages < 1:
        raise PreconditionError(f"the number of messages to skip must be positive, not {messages}")
    plan, moved = Plan(), subscription.moved
    async for position, pending, size in _unacked(subscription, None):
        here = pending.bit_count()
        if plan.messages + here > messages:
            left = pending
            for _ in range(messages - plan.messages):
                left &= left - 1  # without the lowest message
            if left != pending:
                plan.part = position, left
                plan.messages = messages
            break
        _add(plan, position, here, size)
        if plan.messages == messages:
            break
    if subscription.moved != moved:
        # The plan would acknowledge everything from the new position up to the old one.
        raise UnavailableError(
            f"somebody moved the subscription {subscription.name} meanwhile: nothing was skipped"
        )
    return plan


async def plan_expire(subscription: Subscription, before_ms: int) -> Plan:
    """Plan to acknowledge what was stored before a time, and nothing else.

    The times at which messages were published do not count: a producer whose clock is behind would
    make the messages of all others expire.
    """
    log, logs = subscription.topic.log, subscription.topic.logs
    young = subscription.cursor.read_start
    with translated(subscription.topic.name):
        # One search may end early, and the next one goes on there.
        while (found := await logs.first_stored_since(log, young, before_ms)) > young:
            young = found
    plan = await plan_through(subscription, log.previous_position(young))
    plan.expires = True
    return plan


async def plan_through(subscription: Subscription, through: Position) -> Plan:
    """Plan to acknowledge everything up to and including a position."""
    plan = Plan()
    through = min(through, subscription.topic.log.last_confirmed)
    async for position, pending, size in _unacked(subscription, through):
        _add(plan, position, pending.bit_count(), size)
    return plan


async def carry_out(subscription: Subscription, plan: Plan, *, dry_run: bool = False) -> Cleared:
    """Acknowledge what is planned, durably, unless it is a dry run.  Raise UnavailableError."""
    if dry_run:
        return plan.cleared
    if plan.expires:
        subscription.expired += plan.messages
        subscription.expired_ms = subscription.topic.clock.now_ms()
    await subscription.acknowledge(plan.through, plan.part)
    return plan.cleared


def _add(plan: Plan, position: Position, messages: int, size: int) -> None:
    plan.through = position
    plan.messages += messages
    plan.entries += 1
    plan.bytes += size


async def _unacked(
    subscription: Subscription, through: Position | None
) -> AsyncGenerator[tuple[Position, int, int]]:
    """Yield the entries that are not acknowledged: position, bits of pending messages, bytes."""
    log, cursor = subscription.topic.log, subscription.cursor
    end = log.last_confirmed if through is None else through
    at = cursor.read_start
    while at <= end:
        with translated(subscription.topic.name):
            found = await log.read(at, max_entries=_READ_ENTRIES, max_bytes=_READ_BYTES)
        if not found:
            return
        for entry in found:
            if entry.position > end:
                return
            if not cursor.is_acked(entry.position):
                messages = count_messages(entry.data)
                every = (1 << messages) - 1
                pending = cursor.pending_of(entry.position)
                left = every if pending is None else pending & every
                yield entry.position, left, len(entry.data)
        at = log.next_position(found[-1].position)
        await trio.lowlevel.checkpoint()
