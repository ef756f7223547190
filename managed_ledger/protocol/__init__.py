"""The rules of logs and cursors, pure.

log       opening, rolling over to a new ledger, being fenced
cursor    mark-delete, individual acknowledgements, what has to be written
trim      which ledgers neither a cursor nor retention needs
"""
