"""The rules, named as in the literature; each is one pass over the history.

lost_write     what was acknowledged is there; what was not sent, or failed, is not
order          positions agree with receipts, with time, with each other
duplicates     what is stored twice, and whether it may be
cursors        deliveries and acknowledgements: nothing skipped, nothing acknowledged comes again
retention      nothing is let go of that a subscription still owes
termination    a topic that was terminated gets nothing more
ledgers        metadata, copies, the list of a topic's ledgers

Each has a function `check(record)` that yields violations.
"""
