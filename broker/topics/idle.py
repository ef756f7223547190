"""Topics that nobody uses leave memory, and are loaded again when somebody asks for them.

A pass looks at all loaded topics.  Those that may rest (`protocol.idle`) are closed in order, so
nothing is lost: their cursors and the state of deduplication are stored, and their ledgers are
closed.  `rest` asks for such a close; the close itself looks once more (`may_rest`), because
somebody may have come in between.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from random import Random

import trio

from daybook.broker.protocol import idle
from daybook.broker.protocol.idle import Presence
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.upkeep import use_of
from daybook.wire.topics import TopicName

_PASSES = 5  # while a topic becomes idle
_PASS_S_MAX = 30.0
_JITTER = (0.9, 1.1)
_TOPICS_PER_TURN = 100  # then other tasks run
_AT_ONCE = 32  # closes
_WAIT_S = 0.05  # for some of them to end


class IdleTopics:
    """One instance per broker."""

    def __init__(
        self,
        loaded: Callable[[], Iterable[Topic]],
        rest: Callable[[TopicName], None],
        contained: Callable[[Topic, str], AbstractContextManager[None]],
        *,
        idle_s: float,
        rng: Random,
    ) -> None:
        self._loaded = loaded
        self._rest = rest
        self._contained = contained
        self._idle_s = idle_s
        self._rng = rng

    async def run(self) -> None:
        if not self._idle_s:
            return
        interval_s = min(self._idle_s / _PASSES, _PASS_S_MAX)
        while True:
            await trio.sleep(interval_s * self._rng.uniform(*_JITTER))
            await self._pass()

    async def _pass(self) -> None:
        resting: list[Topic] = []
        for count, topic in enumerate(list(self._loaded()), 1):
            if not count % _TOPICS_PER_TURN:
                await trio.lowlevel.checkpoint()
            may_rest = False
            with self._contained(topic, "looking if somebody uses it"):
                may_rest = topic.serving and self.may_rest(topic)
            if not may_rest:
                continue
            # Thousands of closes at once would delay what clients ask for.
            while len(resting) >= _AT_ONCE:
                await trio.sleep(_WAIT_S)
                resting = [each for each in resting if not each.closed]
            self._rest(topic.name)
            resting.append(topic)

    def may_rest(self, topic: Topic) -> bool:
        """Return True if the topic may leave memory now."""
        now_s = trio.current_time()
        if topic.is_held:
            topic.asked_s = now_s  # It becomes idle only after that.
        presence = Presence(
            asked_s=now_s - topic.asked_s,
            busy=topic.is_busy,
            remembers=topic.remembers,
            use=use_of(topic),
        )
        return idle.may_unload(topic.policies, presence, self._idle_s)
