"""Policies that take effect: messages expire or are evicted, producers and consumers have to wait.

A policy is set for a while, and removed at the latest when the storm is over.
"""

from collections.abc import Mapping
from functools import partial

from daybook.broker.admin.operations import Operations
from daybook.broker.admin.subscription_operations import SubscriptionOperations
from daybook.broker.errors import NotFoundError
from daybook.broker.namespaces.policy_table import (
    AGE_QUOTA,
    DISPATCH_RATE,
    MESSAGE_TTL,
    PUBLISH_RATE,
    SIZE_QUOTA,
    SUBSCRIBE_RATE,
    SUBSCRIPTION_DISPATCH_RATE,
    Policy,
)
from daybook.wire.topics import TopicName
from tests.history.events import Fault, FaultEnd
from tests.history.policy_events import Expired, MayEvict, MayExpire
from tests.history.recorder import Recorder
from tests.simulation.plan import Restrict
from tests.simulation.workloads.ask import NotDoneError, Operate, ask, ask_until_done
from tests.simulation.workloads.scene import Scene

_KEPT = 0.9  # share of a quota that an eviction leaves

POLICIES: Mapping[str, Policy] = {
    "ttl": MESSAGE_TTL,
    "evict by age": AGE_QUOTA,
    "evict by size": SIZE_QUOTA,
    "hold": SIZE_QUOTA,
    "refuse": SIZE_QUOTA,
    "publish rate": PUBLISH_RATE,
    "dispatch rate": DISPATCH_RATE,
    "subscription rate": SUBSCRIPTION_DISPATCH_RATE,
    "subscribe rate": SUBSCRIBE_RATE,
}
_BY_SIZE = {
    "evict by size": "consumer_backlog_eviction",
    "hold": "producer_request_hold",
    "refuse": "producer_exception",
}
_DELAYING = ("hold", "publish rate")  # A send may take long.
EXPIRE = "expire"
"""Not a policy: an administrator acknowledges what is older than the limit."""


async def restrict(scene: Scene, work: Restrict) -> None:
    if await scene.wait_calm(work.at_s):
        return
    name, recorder = TopicName.parse(work.topic), scene.recorder(work.name)
    _note(recorder, work)
    if work.how == EXPIRE:
        await _expire(scene, work, name, recorder)
        return
    scene.sending[work.name] = None
    policy = POLICIES[work.how]
    if work.how in _DELAYING:
        recorder.note(Fault(work.name, f"the policy {work.how}", clean=True))
    try:
        await ask(scene, work.name, partial(_set, name, policy, _value(work)))
    except (NotFoundError, NotDoneError):
        scene.marks[f"the policy {work.how} was not set for certain"] += 1
    else:
        scene.marks[f"the policy {work.how} was set"] += 1
    await scene.wait_calm(work.for_s)
    _count_expired(scene)
    await _lift(scene, work)


async def lift_left_policies(scene: Scene) -> None:
    """Remove the policies whose clients were killed before they could do that."""
    for work in scene.plan.work:
        is_left = work.name in scene.sending and work.host not in scene.cluster.lives
        if isinstance(work, Restrict) and is_left:
            scene.marks["a policy is left by a client that was killed"] += 1
            await _lift(scene, work)


async def _lift(scene: Scene, work: Restrict) -> None:
    operate = partial(_set, TopicName.parse(work.topic), POLICIES[work.how], None)
    try:
        await ask_until_done(scene, work.name, operate)
    except NotFoundError:
        scene.marks["a topic with a policy is gone"] += 1
    if work.how in _DELAYING:
        scene.recorder(work.name).note(FaultEnd(work.name))
    del scene.sending[work.name]


def _value(work: Restrict) -> object:
    match work.how:
        case "ttl":
            return work.limit
        case "evict by age":
            return {"limitTime": work.limit, "policy": "consumer_backlog_eviction"}
        case "publish rate":
            return {"publishThrottlingRateInMsg": work.limit}
        case "dispatch rate" | "subscription rate":
            return {"dispatchThrottlingRateInMsg": work.limit}
        case "subscribe rate":
            return {"subscribeThrottlingRatePerConsumer": work.limit, "ratePeriodInSecond": 2}
        case _:
            pass
    return {"limitSize": work.limit, "policy": _BY_SIZE[work.how]}


def _note(recorder: Recorder, work: Restrict) -> None:
    match work.how:
        case "ttl" | "evict by age" | "expire":
            of = work.subscription if work.how == EXPIRE else ""
            recorder.note(MayExpire(work.topic, float(work.limit), of))
        case "evict by size":
            recorder.note(MayEvict(work.topic, int(work.limit * _KEPT)))
        case _:
            pass


def _count_expired(scene: Scene) -> None:
    """Count what brokers have acknowledged by policy since they loaded their topics."""
    for broker in scene.plan.shape.broker_names():
        if (running := scene.cluster.broker(broker)) is not None:
            for topic in list(running.topics.loaded.values()):
                expired = sum(each.expired for each in topic.subscriptions.by_name.values())
                scene.marks["messages expired or were evicted"] += expired


async def _set(name: TopicName, policy: Policy, value: object, operations: Operations) -> None:
    await operations.set_topic_policy(name, policy, value)


async def _expire(scene: Scene, work: Restrict, name: TopicName, recorder: Recorder) -> None:
    async def expire(topic: TopicName, operations: Operations) -> None:
        await SubscriptionOperations(operations).expire(
            topic, work.subscription, work.limit, dry_run=False, authoritative=False
        )

    try:
        for each in scene.concrete(name.full):
            operate: Operate = partial(expire, TopicName.parse(each))
            await ask(scene, work.name, operate)
    except (NotFoundError, NotDoneError):
        scene.marks["expire: not done for certain"] += 1
    else:
        recorder.note(Expired(work.topic, float(work.limit), work.subscription))
        scene.marks["expire: done"] += 1
    _count_expired(scene)
