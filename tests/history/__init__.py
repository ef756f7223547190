"""Histories: what clients saw, written down and checked; one format for simulated and real runs.

events         the events of a history; the format of its lines (`docs/histories.md`)
ledger_events  the events that clients of ledgers see
recorder       writes the history of a run into memory, or into a file
record         a history as the checkers need it: indexed once, by topic and by subscription
faults         the times of faults, and what they excuse
checkers/      lost_write, order, duplicates, cursors, ledgers, entries: each is one pass
check          all checkers; `python -m tests.history FILE...`
availability   the longest times without a successful send: a measure, not a rule
"""
