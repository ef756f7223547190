"""Ledgers of a BookKeeper cluster without trio: for threads, scripts and notebooks."""

from daybook.clients.ledgers.blocking import *  # noqa: F403
