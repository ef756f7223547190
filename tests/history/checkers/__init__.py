"""The rules, named as in the literature; each is one pass over the history.

lost_write     acknowledged messages exist; messages that were not sent, or failed, do not
order          positions agree with receipts, with time, with each other
duplicates     messages that are stored twice, and whether they may be
cursors        deliveries and acknowledgements: nothing is skipped, nothing acknowledged comes again
retention      no message is deleted that a subscription still owes
termination    a terminated topic gets no more messages
ledgers        metadata, copies, the list of a topic's ledgers

Each has a function `check(record)` that yields violations.
"""
