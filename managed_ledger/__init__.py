"""The log of a topic: an ordered list of ledgers, and cursors, which have ledgers of their own.

Read in this order:

    position         the position of an entry
    ack_set          acknowledged positions, as bits
    records          the records of logs and cursors in the metadata store, in Pulsar's formats
    protocol/        the rules, pure: log (rollover, fencing), cursor, trim, room, healing, stalled
    log_tasks        the tasks of one log
    context          what all logs of a host share; the cache of entries; the settings of one log
    ledger_list      the list of a log's ledgers, and all arithmetic on positions
    cursor_ledger    how a cursor is stored: its record, and the records in its ledger
    cursor           the durable cursors of a log: the shell of `protocol.cursor`
    reading          reads from the cache and from ledgers, ahead of demand
    log              an open log: the shell of `protocol.log`
    offsets          offsets and times of messages, and their positions
    behind           how much lies behind a position
    open             opens, creates and deletes logs
    orphans          removes ledgers that nothing names
    binding, tree    which ledgers, and which tree of logs, belong together
"""
