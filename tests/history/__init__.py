"""What clients saw, written down, and checked: one format for simulated and for real runs.

events         what can be in a history; the format of its lines (`docs/histories.md`)
ledger_events  those of them that clients of ledgers see
recorder       how a run writes one: into memory, or into a file
record         a history as the checkers want it: indexed once, by topic and by subscription
faults         when something was broken, and what that excuses
checkers/      lost_write, order, duplicates, cursors, ledgers, entries: each is one pass
check          all of them; `python -m tests.history FILE...`
availability   how long nobody could send: a measure, not a rule
"""
