"""The bundles that other brokers are handing over to this one, and the clients that wait for them.

The expectation ends when this broker owns the bundle, when the other one keeps it, or when nothing
was heard for `_EXPECT_S`.  Topics that the other broker has closed may be loaded before that; the
shell of `protocol.hand_over.Held`.

The record of an expected bundle is watched meanwhile.  If its owner dies, this broker acquires it.
"""

from collections.abc import Awaitable, Callable, Iterable

import trio

from daybook.broker.errors import UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.ownership.owner_records import OwnerRecords, Ticket
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.hand_over import Held
from daybook.broker.protocol.ownership import Answer
from daybook.wire.metadata.store import MetadataError, MetadataStore

# The other broker gives a group of topics 10 s to close, and the bundle 10 s more, without a word.
_EXPECT_S = 30.0  # Then a bundle is expected no longer.
_RETRY_S = 0.1
_EXPECTED_MAX = 4096


class ExpectedBundle:
    """One bundle that is expected."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope(deadline=trio.current_time() + _EXPECT_S)
        self.ticket: Ticket | None = None  # the ticket with which topics were passed on
        self._held = Held()
        self._ended = False
        self._changed = trio.Event()

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def loads(self) -> bool:
        """True if this broker may have loaded topics of the bundle."""
        return self._held.begun

    def may_load(self, hash_: int) -> bool:
        return not self._ended and self._held.may_load(hash_)

    def hold(self, hashes: Iterable[int]) -> None:
        self._heard(lambda: self._held.hold(hashes))

    def pass_on(self, hashes: Iterable[int]) -> None:
        self._heard(lambda: self._held.pass_on(hashes))

    def _heard(self, change: Callable[[], None]) -> None:
        change()
        self.scope.deadline = trio.current_time() + _EXPECT_S
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, hash_: int) -> None:
        """Return when topics of this hash need not wait any more, or after the time above."""
        with trio.move_on_after(_EXPECT_S):
            while not self._ended and not self.may_load(hash_):
                await self._changed.wait()


class ExpectedBundles:
    """All bundles that one broker expects.

    `acquire` and `owns` are those of this broker.  `drop` drops the topics of a bundle at once, and
    `start` runs a task until the broker ends.
    """

    def __init__(
        self,
        store: MetadataStore,
        owner_records: OwnerRecords,
        *,
        acquire: Callable[[BundleName], Awaitable[Answer]],
        owns: Callable[[BundleName], bool],
        drop: Callable[[BundleName], None],
        start: Callable[..., None],
    ) -> None:
        self._store = store
        self._owner_records = owner_records
        self._acquire = acquire
        self._owns = owns
        self._drop = drop
        self._start = start
        self._bundles: dict[BundleName, ExpectedBundle] = {}

    def __contains__(self, bundle: BundleName) -> bool:
        return bundle in self._bundles

    @property
    def full(self) -> bool:
        return len(self._bundles) >= _EXPECTED_MAX

    def get(self, bundle: BundleName) -> ExpectedBundle | None:
        return self._bundles.get(bundle)

    def may_load(self, bundle: BundleName, hash_: int) -> bool:
        """Return True if the owner of the bundle has closed these topics, so that we serve them."""
        expected = self._bundles.get(bundle)
        return expected is not None and expected.may_load(hash_)

    def add(self, bundle: BundleName) -> None:
        """Let clients wait for the bundle.  Do nothing if it is expected or owned already."""
        if bundle not in self._bundles and not self._owns(bundle):
            expected = self._bundles[bundle] = ExpectedBundle()
            self._start(self._follow, bundle, expected)

    def remove(self, bundle: BundleName) -> None:
        """Let clients wait no longer: the other broker has kept the bundle."""
        expected = self._bundles.get(bundle)
        if expected is not None:
            self._end(bundle, expected)

    def cancel_all(self) -> None:
        """Expect no bundle any more, because the session was lost."""
        for expected in self._bundles.values():
            expected.scope.cancel()

    def _end(self, bundle: BundleName, expected: ExpectedBundle) -> None:
        if self._bundles.get(bundle) is expected:
            del self._bundles[bundle]
            if expected.loads and not self._owns(bundle):
                self._drop(bundle)  # Another broker may serve them now.
        expected.end()

    async def given_by(self, bundle: BundleName, ticket: Ticket) -> ExpectedBundle:
        """Return the bundle if it is expected, and if the ticket is that of its present owner.

        Raise UnavailableError.
        """
        expected = self._bundles.get(bundle)
        if expected is not None and expected.ticket != ticket:
            await self._owner_records.check(bundle, ticket)
            expected.ticket = ticket
        if expected is None or expected.ended:
            raise UnavailableError(f"this broker does not expect the bundle {bundle}")
        return expected

    async def _follow(self, bundle: BundleName, expected: ExpectedBundle) -> None:
        """Acquire an expected bundle if its record goes; end when it is ours, or in time."""
        path = records.owner_path(bundle)
        giver: int | None = None  # the session of the broker that hands the bundle over
        try:
            with expected.scope:
                while not self._owns(bundle) and not expected.ended:
                    touched = trio.Event()
                    try:
                        record = await self._store.get(path, touched.set)
                    except MetadataError:
                        await trio.sleep(_RETRY_S)
                        continue
                    if record is not None and record.stat.owner != self._store.session_id:
                        if giver is not None and record.stat.owner != giver:
                            return  # It went to a third broker, which serves the topics now.
                        giver = record.stat.owner
                        await touched.wait()
                    else:
                        answer = await self._acquire(bundle)
                        if answer is Answer.OTHERS:
                            return  # A third broker was faster.
                        if answer is not Answer.OURS:
                            await trio.sleep(_RETRY_S)
        finally:
            self._end(bundle, expected)
