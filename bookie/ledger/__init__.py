"""The replicating client of ledgers: any number of bookies, one writer, recovery.

Read in this order:

    metadata     fragments, quorums and state of a ledger, and the record that keeps them
    protocol/    the rules, pure: placement, write, read, recover
    catalog      the records of ledgers in the metadata store: read, compare-and-swap
    ensemble     which bookies to write to
    bookies      connections to bookies
    writer, reader, recoverer      the shells of the rules
    client       create, open, recover, delete: the way in
"""
