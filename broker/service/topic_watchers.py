"""The topic list watchers of one connection: the shell of `protocol.topic_watchers`.

A client that asks for a watcher is told of topics that come and go.  Updates are sent while the
client takes what is queued for it.  Otherwise they wait, as one difference, until it does.  Only
clients that ask are told anything: others would drop the connection at such a command.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, assert_never

import trio

from daybook.broker.errors import (
    AuthorizationError,
    BrokerError,
    InvalidNameError,
    NotAllowedError,
    RefusedError,
)
from daybook.broker.namespaces.topic_lists import Followed, TopicLists
from daybook.broker.protocol import topic_watchers
from daybook.broker.protocol.patterns import PatternError, TopicPattern
from daybook.broker.protocol.topic_watchers import TopicWatchersProtocol
from daybook.broker.service.connection import ClientConnection
from daybook.broker.service.request_turns import Request, RequestQueue
from daybook.wire.errors import MalformedError
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import check_namespace

T = pb.BaseCommand
_RETRY_S = 1.0  # A right that cannot be checked now is checked again after that time.
Refusing = Callable[[int, Any, BrokerError], None]
Holding = Callable[[BrokerError, AbstractContextManager[None]], Awaitable[None]]


class TopicWatchers:
    """One instance per connection.  `refuse` answers a request with an error, and `hold` waits
    until that may be.

    `authorize` raises AuthorizationError if the client may not see the topics; None if everybody
    may.  It is asked before each change is told, too: a watcher that has lost its right is told
    nothing any more, and is not closed, because clients take that for a lost connection.
    """

    def __init__(
        self,
        connection: ClientConnection,
        lists: TopicLists,
        queue: RequestQueue,
        refuse: Refusing,
        hold: Holding,
        authorize: Callable[[Any], Awaitable[None]] | None,
        *,
        watchers_max: int,
    ) -> None:
        self._connection = connection
        self._lists = lists
        self._queue = queue
        self._refuse = refuse
        self._hold = hold
        self._authorize = authorize
        self._machine = TopicWatchersProtocol(watchers_max=watchers_max)
        self._followed: dict[int, Followed] = {}  # by attempt
        self._scopes: dict[int, trio.CancelScope] = {}  # openings under way, by attempt
        self._checked: set[int] = set()  # attempts whose right is being checked again
        self._waits = False  # a task waits until the client takes more

    def open(self, body: pb.CommandWatchTopicList, frame_bytes: int) -> None:
        effects = self._machine.open(body.watcher_id, body.request_id, body.topics_hash)
        self._perform(effects, body, frame_bytes)

    def close(self, body: pb.CommandWatchTopicListClose) -> None:
        self._perform(self._machine.close(body.watcher_id, body.request_id))

    def end(self) -> None:
        """Stop everything, because the connection has ended."""
        self._perform(self._machine.end())

    def _perform(
        self,
        effects: list[topic_watchers.Effect],
        body: pb.CommandWatchTopicList | None = None,
        frame_bytes: int = 0,
    ) -> None:
        for effect in effects:
            match effect:
                case topic_watchers.Follow(_, attempt):
                    assert body is not None
                    self._begin(body, attempt, frame_bytes)
                case topic_watchers.Unfollow(_, attempt):
                    if attempt in self._scopes:
                        self._scopes[attempt].cancel()
                    followed = self._followed.pop(attempt, None)
                    if followed is not None:
                        followed.stop()
                case topic_watchers.Succeed(request_id, watcher_id, topics, hash_):
                    answer = pb.CommandWatchTopicListSuccess(
                        request_id=request_id, watcher_id=watcher_id, topics_hash=hash_
                    )
                    answer.topic.extend(topics)
                    self._connection.send_command(answer)
                case topic_watchers.Confirm(request_id):
                    self._connection.send_command(pb.CommandSuccess(request_id=request_id))
                case topic_watchers.Refuse(request_id, code, reason):
                    asked = body or pb.CommandWatchTopicList()
                    asked.request_id = request_id
                    self._refuse(T.WATCH_TOPIC_LIST, asked, RefusedError(code, reason))
                case _:
                    assert_never(effect)
        self._send_updates()

    def _begin(self, body: pb.CommandWatchTopicList, attempt: int, frame_bytes: int) -> None:
        self._scopes[attempt] = trio.CancelScope()
        request = Request(partial(self._follow, body, attempt), frame_bytes)
        if not self._queue.begin(request):
            del self._scopes[attempt]
            reason = "too many requests of this connection wait already: ask again later"
            failed = self._machine.open_failed(body.watcher_id, attempt, pb.ServiceNotReady, reason)
            self._perform(failed, body)

    async def _follow(self, body: pb.CommandWatchTopicList, attempt: int, request: Request) -> None:
        watcher_id = body.watcher_id
        scope = self._scopes[attempt]
        followed: Followed | None = None
        try:
            with scope:
                try:
                    followed = await self._find(body, attempt)
                except BrokerError as error:
                    await self._hold(error, self._queue.giving_way(request))
                    failed = self._machine.open_failed(
                        watcher_id, attempt, error.code, error.reason
                    )
                    self._perform(failed, body)
        finally:
            del self._scopes[attempt]
        if followed is None:
            return
        if scope.cancel_called or self._connection.closing:
            followed.stop()
            return
        self._followed[attempt] = followed
        self._listed(watcher_id, attempt)

    async def _find(self, body: pb.CommandWatchTopicList, attempt: int) -> Followed:
        pattern = _pattern(body.topics_pattern)
        namespace = _namespace(body.namespace)
        if self._authorize is not None:
            await self._authorize(body)
        return await self._lists.follow(namespace, pattern, partial(self._changed, body, attempt))

    def _changed(self, body: pb.CommandWatchTopicList, attempt: int) -> None:
        if self._authorize is None:
            self._listed(body.watcher_id, attempt)
        elif attempt in self._followed and attempt not in self._checked:
            self._checked.add(attempt)
            self._connection.start_task(self._check_again, self._authorize, body, attempt)

    async def _check_again(
        self,
        authorize: Callable[[Any], Awaitable[None]],
        body: pb.CommandWatchTopicList,
        attempt: int,
    ) -> None:
        """Tell what has changed, if the client still may see it."""
        while attempt in self._followed:
            try:
                await authorize(body)
                break
            except AuthorizationError:
                self._followed.pop(attempt).stop()
            except BrokerError:  # The right is unknown, which is no right.
                await trio.sleep(_RETRY_S)
        self._checked.discard(attempt)
        self._listed(body.watcher_id, attempt)

    def _listed(self, watcher_id: int, attempt: int) -> None:
        followed = self._followed.get(attempt)
        if followed is not None:
            self._perform(self._machine.listed(watcher_id, attempt, followed.latest))

    def _send_updates(self) -> None:
        """Tell what has changed, as long as the client takes it."""
        connection, machine = self._connection, self._machine
        while not connection.closing and machine.stale:
            if not connection.takes_answers:
                if not self._waits:
                    self._waits = True
                    connection.start_task(self._wait)
                return
            update = machine.next_update()
            assert update is not None
            message = pb.CommandWatchTopicUpdate(
                watcher_id=update.watcher_id, topics_hash=update.hash
            )
            message.new_topics.extend(update.new)
            message.deleted_topics.extend(update.deleted)
            connection.send_command(message)

    async def _wait(self) -> None:
        await self._connection.wait_takes_answers()
        self._waits = False
        self._send_updates()


def _pattern(text: str) -> TopicPattern:
    try:
        return TopicPattern(text)
    except PatternError as error:
        raise NotAllowedError(
            f"the broker does not evaluate the expression {text[:256]!r}, because {error}: ask for"
            " the list of topics from time to time instead"
        ) from None


def _namespace(text: str) -> str:
    try:
        return check_namespace(text)
    except MalformedError as error:
        raise InvalidNameError(str(error)) from None
