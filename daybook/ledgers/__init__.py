"""Ledgers of a BookKeeper cluster, on trio: create, append, read, follow, recover, delete."""

from daybook.clients.ledgers import *  # noqa: F403
