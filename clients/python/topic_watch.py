"""Follows the topics of a pattern: a broker tells of topics that come and go.

    watch = TopicWatch(lookups, pattern, on_names)
    nursery.start_soon(watch.run)

Any broker may be asked.  It gets an expression for the names that may match, and tells of more than
the pattern may want: brokers and Python differ in their regular expressions, so the client applies
the pattern itself.  If a broker does not follow topics, or not with this expression, `run` returns,
and the consumer asks for lists of topics from time to time, as it does anyhow.

    connection lost    another broker is asked; its first answer has all names
    deleted            nothing is reported: the consumer of the topic hears of that by itself
"""

import re
from collections.abc import Awaitable, Callable
from random import Random

import trio

from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.errors import BrokerError, Remedy
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.protocol.retry import Backoff
from daybook.clients.python.topic_choice import TopicPattern
from daybook.wire.messages.registry import AnyCommand, Command
from daybook.wire.proto import pulsar_pb2 as pb

_SPECIAL = frozenset("\\.^$*+?{}[]|()")
_REPEATS = frozenset("*?{")
_PREFIX_CHARS = 16  # Pulsar refuses an expression of more than 50 characters.


def expression_for(pattern: TopicPattern) -> str:
    """Return an expression of a broker that matches all names which the pattern may match.

    It has the plain characters with which all matching names begin.
    """
    regex = pattern.regex
    text = regex.pattern.removeprefix("persistent://").removeprefix(f"{pattern.namespace}/")
    prefix = ""
    if "|" not in text and not regex.flags & (re.IGNORECASE | re.VERBOSE):
        for at, char in enumerate(text):
            if char in _SPECIAL or len(prefix) >= _PREFIX_CHARS:
                if char in _REPEATS:
                    prefix = text[: at - 1] if at else ""  # The last character may be missing.
                break
            prefix += char
    names = re.sub(r"([.+*?()\[\]{}|^$\\])", r"\\\1", pattern.namespace)
    return f"persistent://{names}/{prefix}.*"


class TopicWatch:
    """One instance per consumer of a pattern.  It is an end of the connection that it uses."""

    waiting = False

    def __init__(
        self,
        pattern: TopicPattern,
        watcher_id: int,
        *,
        connect: Callable[[], Awaitable[BrokerConnection]],
        on_names: Callable[[list[str]], None],
        limits: ClientLimits,
        rng: Random,
    ) -> None:
        """`on_names` is called with topics that are there, or are new; it must not wait."""
        self.follows = False  # True while a broker tells of topics
        self._pattern = pattern
        self._id = watcher_id
        self._connect = connect
        self._on_names = on_names
        self._rng = rng
        self._backoff = Backoff(limits.backoff_initial_s, limits.backoff_max_s)
        self._detached = trio.Event()

    async def run(self) -> None:
        """Follow until cancelled; return if the brokers do not offer it."""
        while True:
            try:
                connection = await self._connect()
                if not connection.follows_topics:
                    return
                await self._follow(connection)
            except BrokerError as error:
                if error.remedy is Remedy.GIVE_UP:
                    return
            await trio.sleep(self._backoff.next(self._rng.random()))

    async def _follow(self, connection: BrokerConnection) -> None:
        self._detached = trio.Event()
        connection.watchers[self._id] = self
        try:
            answer = await connection.request(
                pb.CommandWatchTopicList(
                    watcher_id=self._id,
                    namespace=self._pattern.namespace,
                    topics_pattern=expression_for(self._pattern),
                )
            )
            self.follows = True
            self._backoff.reset()
            self._on_names(list(answer.topic))
            await self._detached.wait()
        finally:
            self.follows = False
            if connection.watchers.get(self._id) is self:
                del connection.watchers[self._id]
                if not connection.closed:
                    connection.send_command(
                        pb.CommandWatchTopicListClose(
                            request_id=connection.next_request_id(), watcher_id=self._id
                        )
                    )

    # -- what the connection calls

    def handle(self, command: AnyCommand) -> None:
        """Handle an update."""
        assert isinstance(command, Command)
        if command.body.new_topics:
            self._on_names(list(command.body.new_topics))

    def on_detached(self, reason: str) -> None:
        """Handle the end of the connection: `run` asks another broker."""
        del reason
        self._detached.set()

    def on_assigned(self, url: str) -> None:
        """Ignore it: watchers are not moved."""
