"""The actions of administrators during a run, through the operations of the admin REST API."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum, auto
from functools import partial

import trio

from daybook.broker.admin.message_ids import MessageIdData, Start
from daybook.broker.admin.operations import Operations
from daybook.broker.errors import ConflictError, NotFoundError
from daybook.broker.namespaces.policy_table import (
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
    MESSAGE_TTL,
    PUBLISH_RATE,
    Policy,
)
from daybook.clients.python.client import Client
from daybook.clients.python.errors import BrokerError as ClientError
from daybook.clients.python.errors import NotFoundError as RestNotFoundError
from daybook.wire.topics import TopicName
from tests.history.compaction_events import Compacted
from tests.history.events import (
    Attached,
    Delete,
    Deleted,
    Detach,
    Seek,
    Sought,
    Subscribe,
    Terminate,
    Terminated,
    Unsubscribe,
    Unsubscribed,
)
from tests.simulation.plan import Administer, Spoil, Topic
from tests.simulation.workloads.ask import NotDoneError, Operate, ask, ask_until_done
from tests.simulation.workloads.scene import Scene
from tests.simulation.workloads.stage import Actor

_LOOK_S = 0.1

# Values that lose nothing; None removes the policy.
_POLICIES: tuple[tuple[Policy, tuple[object, ...]], ...] = (
    (MAX_UNACKED_PER_CONSUMER, (None, 5, 50, 0)),
    (MAX_UNACKED_PER_SUBSCRIPTION, (None, 10, 100, 0)),
    (PUBLISH_RATE, (None, {"publishThrottlingRateInMsg": 500}, {"publishThrottlingRateInMsg": -1})),
    (MESSAGE_TTL, (None, 0, 365 * 86_400)),
)

_UNACKED = (MAX_UNACKED_PER_CONSUMER, MAX_UNACKED_PER_SUBSCRIPTION)

OperateOn = Callable[[Operations, TopicName], Awaitable[object]]


_BY_REST = ("unload", "stats", "list")


class For(Enum):
    ANY = auto()
    WHOLE = auto()  # topics without partitions
    PARTITIONED = auto()

    def suits(self, topic: Topic) -> bool:
        return self is For.ANY or (self is For.PARTITIONED) == bool(topic.partitions)


ACTS = (
    ("unload", For.ANY),
    ("unload", For.ANY),
    ("unload bundle", For.ANY),
    ("split bundle", For.ANY),
    ("delete", For.WHOLE),
    ("terminate", For.ANY),
    ("add partition", For.PARTITIONED),
    ("create subscription", For.ANY),
    ("delete subscription", For.ANY),
    ("skip all", For.ANY),
    ("reset", For.ANY),
    ("reset to time", For.ANY),
    ("stats", For.ANY),
    ("list", For.ANY),
    ("change policies", For.ANY),
)
"""The operations by name; those listed twice are drawn more often."""
MORE_ACTS = ("compact",)
"""Operations that are drawn with the work that they belong to."""


async def administer(scene: Scene, client: Client, work: Administer) -> None:
    if await scene.wait_calm(work.at_s):
        return
    try:
        await _Act(scene, client, work).run()
    except NotDoneError:
        scene.marks[f"{work.act}: no broker confirmed it"] += 1
    else:
        scene.marks[f"{work.act}: done"] += 1


class _Act:
    def __init__(self, scene: Scene, client: Client, work: Administer) -> None:
        self._actor = Actor(scene, client, scene.recorder(work.name))
        self._scene = scene
        self._work = work

    async def run(self) -> None:
        if self._work.http and self._work.act in _BY_REST:
            await self._by_rest()
            return
        namespace = TopicName.parse(self._work.topic).namespace
        match self._work.act:
            case "unload":
                await self._unload()
            case "unload bundle":
                with self._actor.hand_over("unload of a namespace"):
                    await self._anywhere(lambda ops: ops.bundles.unload_namespace(namespace))
            case "split bundle":
                await self._owner(self._split)
            case "delete":
                await self._delete()
            case "create subscription":
                await self._create_subscription()
            case "delete subscription":
                await self._delete_subscription()
            case "skip all":
                await self._move("latest", self._skip_all)
            case "reset":
                await self._move("earliest", self._reset)
            case "reset to time":
                await self._move("time", self._reset_to_time)
            case "terminate":
                await self._terminate()
            case "add partition":
                await self._add_partition()
            case "stats":
                await self._owner(self._stats)
            case "compact":
                await self._owner(self._compact)
            case "change policies":
                await self._change_policies()
            case "list":
                await self._anywhere(lambda ops: ops.topics(namespace))
            case other:
                raise ValueError(other)

    async def _by_rest(self) -> None:
        """Ask any broker by REST; it redirects to the owner."""
        work, scene = self._work, self._scene
        admin = scene.admin(work.host, work.name)
        try:
            for topic in scene.concrete(work.topic):
                match work.act:
                    case "unload":
                        with self._actor.hand_over(f"unload of {topic}"):
                            await admin.unload_topic(topic)
                    case "stats":
                        await admin.stats(topic)
                        await admin.internal_stats(topic)
                    case _:
                        await admin.topics(TopicName.parse(topic).namespace)
        except RestNotFoundError:
            return
        except ClientError as error:
            scene.refused(work.name, "administer", error)
            raise NotDoneError from None
        scene.marks[f"{work.act} by REST: done"] += 1

    # -- where an operation is carried out

    async def _anywhere(self, operate: Operate) -> None:
        await self._try(operate)

    async def _owner(self, operate: OperateOn) -> None:
        for topic in self._scene.concrete(self._work.topic):
            name = TopicName.parse(topic)
            await self._try(partial(_swapped, operate, name))

    async def _try(self, operate: Operate) -> None:
        await ask(self._scene, self._work.name, operate)

    # -- the operations

    async def _unload(self) -> None:
        with self._actor.hand_over(f"unload of {self._work.topic}"):
            try:
                await self._owner(lambda ops, topic: ops.unload_topic(topic))
            except NotFoundError:
                return

    async def _split(self, operations: Operations, topic: TopicName) -> None:
        range_ = (await operations.bundles.bundles(topic.namespace)).range_of(topic.bundle_hash)
        with suppress(NotFoundError):  # Somebody else has split it.
            await operations.bundles.split(topic.namespace, range_)

    async def _stats(self, operations: Operations, topic: TopicName) -> None:
        try:
            await operations.stats(topic)
            await operations.internal_stats(topic)
            await operations.last_message_id(topic)
        except NotFoundError:
            return

    async def _delete(self) -> None:
        topic = self._work.topic
        self._actor.note(Delete(topic))
        with suppress(NotFoundError):
            await self._owner(lambda ops, name: ops.delete_topic(name, force=True))
        self._actor.note(Deleted(topic))

    async def _terminate(self) -> None:
        self._scene.terminated[self._work.topic] = None
        # The topic does not exist yet; it may be created at any moment.
        with suppress(NotFoundError):
            await self._owner(self._terminate_one)

    async def _terminate_one(self, operations: Operations, topic: TopicName) -> None:
        self._actor.note(Terminate(topic.full))
        last: MessageIdData = await operations.terminate(topic)
        self._actor.note(Terminated(topic.full, (last.ledger_id, last.entry_id)))

    async def _add_partition(self) -> None:
        topic = self._work.topic
        count = self._scene.topics[topic] + 1
        name = TopicName.parse(topic)
        await self._anywhere(lambda ops: ops.update_partitions(name, count))
        self._scene.topics[topic] = max(count, self._scene.topics[topic])

    async def _change_policies(self) -> None:
        """Change policies of a topic that lose no message; its clients must not notice.

        Limits of what is not acknowledged are lifted in the calm (`lift_limits`).
        """
        name = TopicName.parse(self._work.topic)
        rng = self._scene.rng(f"{self._work.name} policies")
        # Nobody acknowledges an entry that nobody can read, so it would count for ever.
        spoiled = any(
            isinstance(each, Spoil) and each.topic == self._work.topic
            for each in self._scene.plan.work
        )
        self._scene.sending[self._work.name] = None
        try:
            for policy, values in _POLICIES:
                if spoiled and policy in _UNACKED:
                    continue
                value = rng.choice(values)
                if value and policy in _UNACKED:
                    self._scene.limited[self._work.topic] = None
                with suppress(NotFoundError):
                    await self._anywhere(partial(_set_policy, name, policy, value))
        finally:
            del self._scene.sending[self._work.name]

    async def _compact(self, operations: Operations, topic: TopicName) -> None:
        with suppress(NotFoundError, ConflictError):
            await operations.compact(topic)
            state = await operations.compaction(topic)
            while state.status == "RUNNING":
                await trio.sleep(_LOOK_S)
                state = await operations.compaction(topic)
            self._scene.marks[f"a compaction ended: {state.status}"] += 1
            if state.horizon is not None:
                ledger, entry = map(int, state.horizon.split(":"))
                self._actor.note(Compacted(topic.full, (ledger, entry)))

    async def _create_subscription(self) -> None:
        topic, name = self._work.topic, self._work.subscription
        consumer = f"{self._work.name}.{self._scene.number(self._work.name)}"
        self._scene.subscriptions[topic, name] = "shared"
        self._actor.note(Subscribe(topic, name, consumer, "shared", "earliest"))
        since_ns = self._scene.now_ns()
        try:
            await self._owner(
                lambda ops, where: ops.create_subscription(where, name, Start.earliest())
            )
        except NotFoundError:
            del self._scene.subscriptions[topic, name]
        else:
            self._actor.note(Attached(consumer, since_ns))
        finally:
            self._actor.note(Detach(consumer))

    async def _delete_subscription(self) -> None:
        topic, name = self._work.topic, self._work.subscription
        self._actor.note(Unsubscribe(topic, name))
        with suppress(NotFoundError):
            await self._owner(lambda ops, where: ops.delete_subscription(where, name, force=True))
        self._actor.note(Unsubscribed(topic, name))

    async def _move(self, to: str, operate: OperateOn) -> None:
        topic, name = self._work.topic, self._work.subscription
        number = self._scene.number("seek")
        self._actor.note(Seek(topic, name, number, to))
        try:
            await self._owner(operate)
        except NotFoundError:
            return
        self._actor.note(Sought(number))

    async def _skip_all(self, operations: Operations, topic: TopicName) -> None:
        await operations.skip_all(topic, self._work.subscription)

    async def _reset(self, operations: Operations, topic: TopicName) -> None:
        await operations.reset_to(topic, self._work.subscription, Start.earliest())

    async def _reset_to_time(self, operations: Operations, topic: TopicName) -> None:
        scene, work = self._scene, self._work
        back_ms = round(scene.rng(f"{work.name} goes back").uniform(0.0, work.at_s) * 1000)
        when_ms = scene.now_ms(work.host) - back_ms
        await operations.reset_to_time(topic, work.subscription, when_ms)


async def lift_limits(scene: Scene) -> None:
    """Remove the limits of what is not acknowledged.

    In the calm nobody acknowledges anything, and consumers have to get all that they are owed.
    """
    for topic in scene.limited:
        for policy in _UNACKED:
            change = partial(_set_policy, TopicName.parse(topic), policy, None)
            with suppress(NotFoundError):
                await ask_until_done(scene, "the lifting of limits", change)
            scene.marks["a limit of what is not acknowledged was lifted"] += 1


async def _set_policy(
    topic: TopicName, policy: Policy, value: object, operations: Operations
) -> None:
    await operations.set_topic_policy(topic, policy, value)


async def _swapped(operate: OperateOn, topic: TopicName, operations: Operations) -> object:
    return await operate(operations, topic)
