"""The rules of logs and cursors, pure.

log       rolling over to a new ledger, and being fenced
cursor    mark-delete, single acknowledgements, and the changes to be recorded
trim      the ledgers that neither a cursor nor retention needs
room      how full the list of ledgers is, and what that still allows
healing   when a ledger that lacks copies is left for a new one
stalled   when a ledger without an ack quorum is left for a new one
orphans   the ledgers that nothing names, and nothing ever will
"""
