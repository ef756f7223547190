"""The topics of a namespace, followed while they come and go.

    followed = await lists.follow("public/default", pattern, on_changed)
    followed.latest.names          # changes; `on_changed` is called after each change
    followed.stop()

A namespace that is followed is read once for all its followers, and watched in the metadata store:
the lists of logs and of partitioned topics, and the record of each partitioned topic, which may get
more partitions.  After a change the list is read again; changes that come fast are read together.
Followers that want the same expression share one filtered list, and an expression is applied to
each name once.

While the store is out of reach, the last list stays in force: a topic is never reported as deleted
because nobody could be asked.  Topics that Pulsar keeps for itself are left out.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress

import trio

from daybook.broker.errors import NotAllowedError, UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.system_topics import is_system
from daybook.broker.protocol.patterns import TopicPattern
from daybook.broker.protocol.topic_watchers import TopicList
from daybook.managed_ledger.records import log_path
from daybook.wire.errors import MalformedError
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore, Watch
from daybook.wire.topics import TopicName, url_decode

_FILTERED_MAX = 1_000  # expressions that are followed, on one broker
_INTERVAL_S = 0.1  # between two reads of a namespace that changes all the time
_SHARE = 10  # a namespace is read for at most one part in so many of the time
_LINGER_S = 30.0  # so long a namespace is watched after its last follower has left
_RETRY_S = 1.0
_AT_ONCE = 32  # records that are read
_NAMES_PER_TURN = 200  # an expression is applied to so many; then other tasks run


async def without_system(names: Iterable[str]) -> list[str]:
    """Return the names that are not those of system topics; other tasks run meanwhile."""
    found: list[str] = []
    for count, name in enumerate(names, 1):
        if not is_system(TopicName.parse(name)):
            found.append(name)
        if not count % _NAMES_PER_TURN:
            await trio.lowlevel.checkpoint()
    return found


async def matching(names: Iterable[str], pattern: TopicPattern) -> set[str]:
    """Return the names that match; other tasks run meanwhile."""
    found: set[str] = set()
    for count, name in enumerate(names, 1):
        if pattern.matches(name):
            found.add(name)
        if not count % _NAMES_PER_TURN:
            await trio.lowlevel.checkpoint()
    return found


class Followed:
    """One follower of a filtered list."""

    def __init__(self, filtered: "_Filtered", on_changed: Callable[[], None]) -> None:
        self.on_changed = on_changed
        self._filtered = filtered

    @property
    def latest(self) -> TopicList:
        assert self._filtered.latest is not None
        return self._filtered.latest

    def stop(self) -> None:
        self._filtered.followers.pop(self, None)


class TopicLists:
    """One instance per broker.  `run` belongs in its nursery."""

    def __init__(self, store: MetadataStore, log: Log) -> None:
        self._store = store
        self._log = log
        self._namespaces: dict[str, _Namespace] = {}
        self._nursery: trio.Nursery | None = None
        self._watches = _Watches(self._noticed)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    @property
    def watched(self) -> int:
        """The number of namespaces that are watched in the store."""
        return len(self._namespaces)

    async def follow(
        self, namespace: str, pattern: TopicPattern, on_changed: Callable[[], None]
    ) -> Followed:
        """Follow the topics of a namespace that match, from the list as it is now.

        Raise UnavailableError if the list was never read, and NotAllowedError if too many different
        lists are followed.
        """
        if self._nursery is None:
            raise UnavailableError("this broker is starting, or ending: try again")
        known = self._namespaces.get(namespace)
        if known is None:
            known = self._namespaces[namespace] = _Namespace(namespace, self._store, self._watches)
            self._nursery.start_soon(self._keep, known)
        filtered = known.filtered.get(pattern.text)
        if filtered is None:
            if sum(len(each.filtered) for each in self._namespaces.values()) >= _FILTERED_MAX:
                raise NotAllowedError(
                    f"{_FILTERED_MAX} lists of topics are followed on this broker, which is the"
                    " limit: ask for the list from time to time instead"
                )
            filtered = known.filtered[pattern.text] = _Filtered(pattern)
        followed = Followed(filtered, on_changed)
        filtered.followers[followed] = None
        try:
            if filtered.latest is None:
                known.touch()
                await filtered.wait_listed()
        except BaseException:
            followed.stop()
            raise
        return followed

    def _noticed(self, namespace: str, topic: str | None) -> None:
        """Have a namespace read again; `topic` is a partitioned one whose record has changed."""
        known = self._namespaces.get(namespace)
        if known is not None:
            known.touch(topic)

    async def _keep(self, namespace: "_Namespace") -> None:
        """Keep a list current until nobody has followed it for a while."""
        while await namespace.wait_touched():
            begin = trio.current_time()
            try:
                await namespace.refresh()
            except Exception as error:  # The lists of other namespaces go on.
                why = str(error)
                if isinstance(error, MetadataError | MalformedError):
                    self._log.info(
                        "the topics of a namespace cannot be read; the broker tries again",
                        namespace=namespace.name,
                        why=why,
                    )
                else:
                    why = "the broker has a bug; its log has the reason"
                    self._log.error(
                        "the topics of a namespace are not followed because of a bug: please report"
                        " it",
                        namespace=namespace.name,
                        exc_info=error,
                    )
                namespace.failed(why)
                namespace.touch()
                await trio.sleep(_RETRY_S)
                continue  # The time until the failure says nothing about the size of the list.
            took_s = trio.current_time() - begin
            await trio.sleep(max(_INTERVAL_S, _SHARE * took_s))
        del self._namespaces[namespace.name]


class _Filtered:
    """The names that match one expression, and those who follow them."""

    def __init__(self, pattern: TopicPattern) -> None:
        self.pattern = pattern
        self.latest: TopicList | None = None
        self.followers: dict[Followed, None] = {}
        self.failure: str | None = None
        self._names: frozenset[str] = frozenset()  # to which the expression was applied
        self._listed = trio.Event()

    async def wait_listed(self) -> None:
        await self._listed.wait()
        if self.latest is None:
            raise UnavailableError(f"the topics cannot be listed now: {self.failure}")

    async def refresh(self, names: frozenset[str]) -> None:
        """Apply the expression to the names that are new, and tell the followers of a change."""
        new = await matching(names - self._names, self.pattern)
        before = self.latest
        kept = frozenset[str]() if before is None else before.names & names
        self._names = names
        found = kept | new
        if before is not None and found == before.names:
            return
        self.latest = TopicList(found)
        if before is None:
            self._listed.set()  # Everybody who follows it waits for this.
            return
        for followed in list(self.followers):
            followed.on_changed()

    def failed(self, why: str) -> None:
        """Answer those who wait for the first list."""
        if self.latest is None:
            self.failure = why
            self._listed.set()
            self._listed = trio.Event()


class _Namespace:
    """One namespace that is watched."""

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        watches: "_Watches",
    ) -> None:
        self.name = name
        self.filtered: dict[str, _Filtered] = {}
        self._store = store
        self._watches = watches
        self._touched = trio.Event()
        self._partitions: dict[str, int] = {}  # by the encoded name of the partitioned topic
        self._outdated: set[str] = set()  # partitioned topics whose record has to be read again

    def touch(self, topic: str | None = None) -> None:
        """Have the list read again, and the record of a partitioned topic if one is named."""
        if topic is not None:
            self._outdated.add(topic)
        self._touched.set()

    def failed(self, why: str) -> None:
        for filtered in self.filtered.values():
            filtered.failed(why)

    async def wait_touched(self) -> bool:
        """Return True if the list has to be read, False if nobody has followed it for a while."""
        while True:
            self._drop_unused()
            unused = not self.filtered
            with trio.move_on_after(_LINGER_S) as scope:
                await self._touched.wait()
            if not scope.cancelled_caught:
                self._touched = trio.Event()
                return True
            if unused and not self.filtered:
                return False

    def _drop_unused(self) -> None:
        self.filtered = {text: each for text, each in self.filtered.items() if each.followers}

    async def refresh(self) -> None:
        """Read what has changed.  Raise MetadataError or MalformedError."""
        logs = await self._children(log_path(f"{self.name}/persistent"))
        found = {name.full for name in self._names(logs)}
        await self._read_partitioned()
        for encoded, count in self._partitions.items():
            for topic in self._names([encoded]):
                found |= {topic.partition_name(index).full for index in range(count)}
        self._drop_unused()
        names = frozenset(found)
        for filtered in list(self.filtered.values()):
            await filtered.refresh(names)

    def _names(self, encoded: Iterable[str]) -> Iterator[TopicName]:
        """Yield the topics that clients may see.  A record that names no topic hides no other."""
        for each in encoded:
            with suppress(MalformedError):
                name = TopicName.parse(f"persistent://{self.name}/{url_decode(each)}")
                if not is_system(name):
                    yield name

    async def _read_partitioned(self) -> None:
        """Read how many partitions the topics have, as far as that may have changed."""
        present = await self._children(records.partitioned_parent(self.name))
        outdated, self._outdated = self._outdated, set()
        known = self._partitions
        self._partitions = {n: known[n] for n in present if n in known and n not in outdated}
        unread = [name for name in present if name not in self._partitions]
        await _each(unread, self._read_partitions)

    async def _read_partitions(self, encoded: str) -> None:
        path = f"{records.partitioned_parent(self.name)}/{encoded}"
        with self._watches.armed("record", path, self.name, encoded) as watch:
            record = await self._store.get(path, watch)
        if record is not None:
            found = records.decode(records.PartitionedTopic, record.value)
            self._partitions[encoded] = found.partitions

    async def _children(self, path: str) -> list[str]:
        """Return the names of the children, and have a change of them noticed."""
        while True:
            with self._watches.armed("children", path, self.name) as watch:
                names = await self._store.get_children(path, watch)
            if names is not None:
                return names
            # There is no such record, so that watch was not set.  This one fires when there is one.
            self._watches.disarm("children", path)
            with self._watches.armed("record", path, self.name) as watch:
                if await self._store.get(path, watch) is None:
                    return []


class _Watches:
    """The watches that are set and have not fired.

    A path is never watched twice.  Otherwise a client that opens and closes watchers all the time
    would pile up watches.
    """

    def __init__(self, noticed: Callable[[str, str | None], None]) -> None:
        self._noticed = noticed
        self._set: set[tuple[str, str]] = set()

    @contextmanager
    def armed(
        self, kind: str, path: str, namespace: str, topic: str | None = None
    ) -> Generator[Watch | None]:
        """Give the watch to set with a read; None if one has not fired yet.

        A read that fails leaves unknown whether its watch was set, so the next one sets another.
        """
        if (kind, path) in self._set:
            yield None
            return

        def fired() -> None:
            self.disarm(kind, path)
            self._noticed(namespace, topic)

        self._set.add((kind, path))
        try:
            yield fired
        except BaseException:
            self.disarm(kind, path)
            raise

    def disarm(self, kind: str, path: str) -> None:
        self._set.discard((kind, path))


async def _each(names: list[str], act: Callable[[str], Awaitable[None]]) -> None:
    """Act on all names, several at a time.  Raise the first error."""
    errors: list[MetadataError | MalformedError] = []

    async def work(start: int) -> None:
        try:
            for index in range(start, len(names), _AT_ONCE):
                await act(names[index])
        except (MetadataError, MalformedError) as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for start in range(min(_AT_ONCE, len(names))):
            nursery.start_soon(work, start)
    if errors:
        raise errors[0]
