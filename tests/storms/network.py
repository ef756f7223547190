"""Links between hosts.  A message waits on its link until the schedule delivers it.

A link keeps the order of messages, unless the storm is without `fifo`.  A link that is cut loses
its oldest messages; those sent after them go over a new connection and arrive.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tests.storms.chance import Chance

Message: TypeAlias = tuple[Any, ...]  # the function to call when it arrives, its arguments


class Network:
    """Links between numbered hosts; a message to the own host is a call that is made later.

    Links from and to `reliable` hosts are never cut: these hosts simulate lost answers themselves.
    """

    def __init__(
        self, chance: Chance, hosts: int, *, fifo: bool, reliable: Sequence[int] = ()
    ) -> None:
        self.fifo = fifo
        self._reliable = reliable
        self._chance = chance
        self._hosts = hosts
        self._links: dict[int, deque[Message]] = {}
        self._busy: list[int] = []

    @property
    def quiet(self) -> bool:
        return not self._busy

    def send(self, source: int, target: int, call: Callable[..., None], *args: object) -> None:
        link = source * self._hosts + target
        queue = self._links.get(link)
        if queue is None:
            queue = self._links[link] = deque()
        if not queue:
            self._busy.append(link)
        queue.append((call, *args))

    def deliver(self) -> None:
        """Let one message arrive."""
        if not self._busy:
            return
        link = self._chance.busy(self._busy)
        queue = self._links.get(link)
        if not queue:
            return
        if self.fifo or len(queue) == 1:
            call, *args = queue.popleft()
        else:
            at = self._chance.below(len(queue))
            call, *args = queue[at]
            del queue[at]
        if not queue:
            self._busy.remove(link)
        call(*args)

    def deliver_all(self, at_most: int) -> None:
        """Deliver everything, and what is sent because of it; links take turns."""
        for _ in range(at_most):
            if not self._busy:
                return
            link = self._busy.pop(0)
            queue = self._links[link]
            call, *args = queue.popleft()
            if queue:
                self._busy.append(link)
            call(*args)

    def cut(self) -> int:
        """Cut a link; return the number of messages that are lost."""
        if not self._busy:
            return 0
        link = self._chance.busy(self._busy)
        queue = self._links.get(link)
        source, target = divmod(link, self._hosts)
        if not queue or source == target or source in self._reliable or target in self._reliable:
            return 0
        lost = 1 + self._chance.below(len(queue))
        for _ in range(lost):
            queue.popleft()
        if not queue:
            self._busy.remove(link)
        return lost

    def disconnect(self, one: int, other: int) -> None:
        """Lose all messages between two hosts, in both directions."""
        for link in (one * self._hosts + other, other * self._hosts + one):
            if self._links.get(link):
                self._links[link].clear()
                self._busy.remove(link)

    def under_way(self) -> Sequence[int]:
        """Return the links that carry something."""
        return self._busy
