"""A topic's log: an ordered list of ledgers, and cursors, which are ledgers too.

Read in this order:

    position         where an entry lies
    ack_set          acknowledged positions, as bits
    records          what the metadata store keeps of a log and of a cursor: Pulsar's formats
    protocol/        the rules, pure: log (open, roll, fenced), cursor, trim
    cursor_ledger    how a cursor is kept in its ledger: snapshots, and small changes in between
    cache            recent entries, bounded in bytes
    rolling          the ledgers that a log writes: the present one, the next one, the one before
    trimming         ledgers that nobody needs are dropped: the shell of `protocol.trim`
    ending           how a log ends: terminated, closed, cleared, given up
    log              the shell of `protocol.log`: append and read
    cursor           the shell of `protocol.cursor`
    offsets          from offsets and times to positions
    behind           how much lies behind a position
    tree             the id of all logs of a metadata store, which their ledgers name
    orphans          ledgers that no list names
    open             open, create and delete logs
"""
