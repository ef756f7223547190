"""The client for topics without trio: for threads, scripts and the interactive prompt."""

from daybook.clients.python.blocking import *  # noqa: F403
