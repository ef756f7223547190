"""Requests of commands to the admin REST of brokers."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from daybook.clients.cli.broker_client import PATIENCE_S, brokers_at, error_sentence, no_answer
from daybook.clients.cli.options import client_arguments
from daybook.clients.cli.progress import waiting_for
from daybook.clients.cli.run import run_async
from daybook.clients.python.admin import Admin

T = TypeVar("T")


def ask_admin(
    admin_url: str, question: Callable[[Admin], Awaitable[T]], *, changes: bool = False
) -> T:
    """Return the answer of a broker to a question, or exit with its error in words.

    `changes` says that the question changes something, so a lost answer leaves it in doubt.
    """

    arguments = client_arguments(admin_url)

    async def ask() -> T:
        admin = Admin(admin_url, timeout_s=PATIENCE_S, **arguments)
        async with waiting_for(brokers_at(admin_url), PATIENCE_S, lambda: admin.trouble):
            with trio.move_on_after(PATIENCE_S):
                return await question(admin)
        raise no_answer(admin_url)

    return run_async(
        ask, lambda error: error_sentence(error, admin_url, "--admin-url", changes=changes)
    )
