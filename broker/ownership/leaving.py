"""A bundle that this broker hands over, and those of its topics that are still served here.

The shell of `protocol.hand_over.PassedOn`.  The topics are closed group by group, and the next
owner loads each group at once.  A bundle of a few topics is closed as a whole.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from daybook.broker.connected_client import SuccessorUrls
from daybook.broker.errors import BrokerError
from daybook.broker.namespaces.records import Successor
from daybook.broker.ownership.owner_records import Ticket
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.hand_over import GROUPS_AT_ONCE, PassedOn
from daybook.broker.topics.topics import Topics
from daybook.wire.logging import Log

_CLOSE_TIMEOUT_S = 10.0
_GROUP_S = 0.25  # the time in which a group of topics changes hands


@dataclass(frozen=True, slots=True)
class Receiver:
    """The calls to the broker that gets a bundle; each raises a BrokerError if it fails.

    `hold` tells the hashes of the topics that the owner still serves, `pass_on` the names of topics
    that it has closed, and those in use among them, which the receiver loads.  `give` lets the
    receiver take the record.
    """

    hold: Callable[[Ticket, Sequence[int]], Awaitable[None]]
    pass_on: Callable[[Ticket, Sequence[str], Sequence[str]], Awaitable[None]]
    give: Callable[[Ticket], Awaitable[None]]


class LeavingBundle:
    """One bundle that is handed over.  From its creation on, it must have no new topics."""

    def __init__(
        self,
        bundle: BundleName,
        successor: Successor,
        receiver: Receiver,
        ticket: Ticket,
        topics: Topics,
        log: Log,
    ) -> None:
        self.bundle = bundle
        self.successor = successor
        self.ticket = ticket
        self.taken = False  # The successor has the record.
        self._receiver = receiver
        self._topics = topics
        self._passed_on = PassedOn(topics.with_hashes(bundle), target_s=_GROUP_S)
        self._given_up = False
        self._log = log

    @property
    def urls(self) -> SuccessorUrls:
        """The URLs to which clients are sent."""
        return SuccessorUrls(self.successor.native_url or "", self.successor.native_url_tls or "")

    def keeps(self, topic: str) -> bool:
        """Return True if this broker still serves the topic."""
        return self._passed_on.keeps(topic)

    def give_up(self) -> None:
        """Begin with no further group of topics, as nobody waits for them any more."""
        self._given_up = True

    async def pass_on(self, contact: Callable[[], bool]) -> None:
        """Hand the topics over group by group, while there is contact with the store.

        Some may be left after an error.  After this the caller closes those, and the successor
        answers for all of them.
        """
        if not self._passed_on.fits_at_once:
            # The successor may serve topics that store nothing from the first group on.
            self._topics.non_persistent.close_bundle(self.bundle, self.urls)
            await self._pass_on_groups(contact)
        self._passed_on.take_all()

    async def _pass_on_groups(self, contact: Callable[[], bool]) -> None:
        topics, ticket, failed = self._passed_on, self.ticket, False

        async def work() -> None:
            nonlocal failed
            # A caller that has given up, or a lost session, ends it, too.
            while not failed and not self._given_up and contact():
                names = topics.next_group()
                if not names:
                    return
                began = trio.current_time()
                used = self._topics.in_use(names)
                with trio.move_on_after(_CLOSE_TIMEOUT_S) as scope:
                    await self._topics.close_names(names, self.urls)
                if scope.cancelled_caught:
                    return  # They are closed or dropped with the bundle.
                try:
                    await self._receiver.pass_on(ticket, names, used)
                except BrokerError as error:
                    failed = True
                    self._log.warning(
                        "the next owner of a bundle does not load its topics",
                        bundle=self.bundle,
                        why=str(error),
                    )
                topics.took(len(names), trio.current_time() - began)

        try:
            await self._receiver.hold(ticket, topics.hashes)
        except BrokerError as error:
            self._log.warning(
                "the next owner of a bundle takes its topics only together",
                bundle=self.bundle,
                why=str(error),
            )
            return
        async with trio.open_nursery() as nursery:
            for _ in range(GROUPS_AT_ONCE):
                nursery.start_soon(work)

    async def give(self) -> None:
        """Let the successor take the record.  Raise a BrokerError if it may not have it."""
        await self._receiver.give(self.ticket)
        self.taken = True
