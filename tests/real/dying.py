"""Processes that die at a chosen moment of their requests about a sink.

A request has three moments: before it is sent, when it was sent and no answer has come, and when
its answer has come.  A request that has failed is repeated, on a busy machine more often than
elsewhere; the moments of a repetition do not count.
"""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from daybook.clients.pipelines.archive.replay_task import ReplayTask
from daybook.clients.python import http

_ERROR = 400


class DiedError(BaseException):
    """The process of a driver was killed, as far as the cluster can tell."""


@contextmanager
def dying(at: int, die: Callable[[], None]) -> Generator[list[str]]:
    """Let the requests in the block die at one of their moments, which count from 0.

    The list has the moments that were.
    """
    seen: list[str] = []
    inside = False
    failed = ""
    connections, transport = cast("Any", http.HttpConnection), cast("Any", http)
    request, receive = connections.request, transport._receive

    def moment(what: str) -> None:
        seen.append(what)
        if len(seen) - 1 == at:
            die()

    async def requested(*arguments: Any, **more: Any) -> Any:
        nonlocal inside, failed
        _, method, target, *_ = arguments
        name = f"{method} {target}"
        if name == failed:
            answer = await request(*arguments, **more)
        else:
            moment(f"before {name}")
            inside, failed = True, name
            try:
                answer = await request(*arguments, **more)
            finally:
                inside = False
            moment(f"after {name}")
        failed = name if answer.status >= _ERROR else ""
        return answer

    async def received(*arguments: Any) -> Any:
        if inside:
            moment("sent")
        return await receive(*arguments)

    connections.request, transport._receive = requested, received
    try:
        yield seen
    finally:
        connections.request, transport._receive = request, receive


def die_as_driver() -> None:
    raise DiedError


def die_as_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class DyingTask(ReplayTask):
    """The task of the first piece kills its worker at one of its moments."""

    at: int = -1

    async def _stage(self, index: int) -> dict[str, Any]:
        whole = ReplayTask._stage
        if index:
            return await whole(self, index)
        with dying(self.at, die_as_worker):
            return await whole(self, index)
