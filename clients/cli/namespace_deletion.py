"""The deletion of a namespace, until the namespace is gone.

A broker marks the namespace, deletes its topics one after the other, and at last deletes the record
of the namespace.  It spends a minute on one request.  With thousands of topics a request ends
before the namespace does, so the command looks what is left, and asks again while topics go:

    gone                        the deletion has ended, whatever became of the request
    marked                      a broker works on it, perhaps for another request: wait
    marked, and nothing goes    the broker died, and its mark has stayed: ask again
    not marked, fewer topics    the broker has used up its minute: ask again
    not marked, no topic went   the deletion failed: its error is raised
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio

from daybook.clients.cli.broker_client import PATIENCE_S, error_sentence
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import client_arguments
from daybook.clients.cli.output import counted
from daybook.clients.cli.progress import Advance, open_progress
from daybook.clients.cli.run import run_async
from daybook.clients.python.admin import Admin
from daybook.clients.python.errors import (
    AdminInDoubtError,
    AdminNotReadyError,
    BrokerError,
    ConflictError,
    InDoubtError,
    NotFoundError,
    UnavailableError,
)

TIMEOUT_S = 3600
_REQUEST_S = 90.0  # A broker gives a request up after 60 s, and needs a moment to say so.
_STALLED_S = 75.0  # After that, no broker works on a request that nobody sees any more.
_LOOK_S = 2.0
_SHARE = 5  # Looking takes at most one part in so many of the time.
_UNDECIDED_S = 5.0  # A request without an answer may reach its broker a little later.
_UNANSWERED_S = 60.0  # Looks that fail for so long end the command.


@dataclass(frozen=True, slots=True)
class _Seen:
    """The namespace at one look."""

    topics: int
    marked: bool


def delete_until_gone(admin_url: str, namespace: str, *, force: bool, timeout_s: float) -> None:
    """Delete a namespace, and return when it is gone.  Exit with an error in words."""
    arguments = client_arguments(admin_url)
    looking = Admin(admin_url, timeout_s=min(PATIENCE_S, timeout_s), **arguments)
    asking = Admin(admin_url, timeout_s=min(_REQUEST_S, timeout_s), **arguments)

    async def run() -> None:
        async with open_progress(f"Deleting the namespace {namespace}") as advance:
            deletion = _Deletion(looking, asking, namespace, advance, force=force)
            with trio.move_on_after(timeout_s):
                await deletion.run()
                return
            raise deletion.too_late(timeout_s)

    run_async(run, lambda error: error_sentence(error, admin_url, "--admin-url", changes=True))


class _Deletion:
    def __init__(
        self, looking: Admin, asking: Admin, namespace: str, advance: Advance, *, force: bool
    ) -> None:
        self._looking = looking
        self._asking = asking
        self._namespace = namespace
        self._advance = advance
        self._force = force
        self._total = 0
        self._left = 0  # topics at the last look
        self._marked = False  # at the last look
        self._trouble: BrokerError | None = None  # why the last look failed
        self._took_s = 0.0  # the last look

    async def run(self) -> None:
        """Return when the namespace is gone.  Raise the error of a deletion that failed."""
        seen = await self._read()
        self._total = seen.topics
        self._show(seen)
        if seen.marked and await self._wait_for_end(None):
            return
        stalled_before = False
        while True:
            before = self._left
            doubt = await self._request()
            if doubt is None or await self._wait_for_end(doubt):
                return
            stalled = self._marked and not stalled_before
            # An empty namespace may be a new one of that name, if the broker's answer was lost.
            perhaps_new = not self._left and not isinstance(doubt, AdminInDoubtError)
            if perhaps_new or (self._left >= before and not stalled):
                raise doubt
            stalled_before = self._left >= before

    def too_late(self, timeout_s: float) -> UserError:
        why = "" if self._trouble is None else f" ({self._trouble})"
        return UserError(
            f"The namespace {self._namespace} was not deleted within {timeout_s:g} s:"
            f" {counted(self._left, 'topic')} were left{why}. Its broker may go on: `daybook"
            f" namespaces show {self._namespace}` tells, and the same command takes it up again."
        )

    async def _request(self) -> BrokerError | None:
        """Ask for the deletion.  Return the error if the request may have been carried out."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_looking)
            try:
                await self._asking.delete_namespace(self._namespace, force=self._force)
                doubt: BrokerError | None = None
            except (InDoubtError, NotFoundError) as error:
                doubt = error  # Not found is a topic, or the namespace: the next look tells.
            except ConflictError as error:
                if self._force or "topic" not in str(error):
                    raise
                raise UserError(f"{error}: --force deletes them, with their messages.") from error
            nursery.cancel_scope.cancel()
        return doubt

    async def _keep_looking(self) -> None:
        """Show what is left while a request is under way."""
        while True:
            await self._pause()
            await self._look()

    async def _wait_for_end(self, doubt: BrokerError | None) -> bool:
        """Return True when the namespace is gone; False when nobody works on it any more."""
        now = trio.current_time
        answered, went, lowest = now(), now(), self._left
        answer_came = doubt is None or not isinstance(doubt, InDoubtError)
        undecided = 0.0 if answer_came or isinstance(doubt, AdminInDoubtError) else _UNDECIDED_S
        free_from: float | None = None
        while True:
            if await self._look():
                return True
            if self._trouble is not None:
                if now() - answered > _UNANSWERED_S:
                    raise doubt or self._trouble
            else:
                answered = now()
                if self._left < lowest:
                    went, lowest = now(), self._left
                free_from = None if self._marked else free_from or now()
                if free_from is not None and now() - free_from >= undecided:
                    return False
                if self._marked and now() - went > _STALLED_S:
                    return False
            await self._pause()

    async def _pause(self) -> None:
        await trio.sleep(max(_LOOK_S, _SHARE * self._took_s))

    async def _look(self) -> bool:
        """Look and show what is left.  Return True if the namespace is gone."""
        began = trio.current_time()
        try:
            seen = await self._read()
        except NotFoundError:
            return True
        except (InDoubtError, AdminNotReadyError, UnavailableError) as error:
            self._trouble = error
            self._show_progress(f"; {error}")
            return False
        finally:
            self._took_s = trio.current_time() - began
        self._trouble = None
        self._show(seen)
        return False

    async def _read(self) -> _Seen:
        record: Mapping[str, Any] = await self._looking.policies(self._namespace)
        marked = record.get("deleted") is True
        return _Seen(len(await self._looking.topics(self._namespace)), marked)

    def _show(self, seen: _Seen) -> None:
        self._left, self._marked = seen.topics, seen.marked
        self._total = max(self._total, seen.topics)
        self._show_progress("")

    def _show_progress(self, more: str) -> None:
        done = self._total - self._left
        self._advance(done, self._total, f"{counted(self._left, 'topic')} left{more}")
