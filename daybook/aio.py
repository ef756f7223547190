"""The client for topics on asyncio."""

from daybook.clients.python.aio import *  # noqa: F403
