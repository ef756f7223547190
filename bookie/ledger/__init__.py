"""The replicating client of ledgers: any number of bookies, one writer, recovery.

Read in this order:

    metadata     fragments, quorums and state of a ledger, and the record that keeps them
    protocol/    the rules, pure: placement, racks, write, deferred, read, recover, update
    catalog      the records of ledgers in the metadata store: read, compare-and-swap
    marks        ledgers that lack copies, for whoever restores them
    orders       what bookies are asked to do: take no entries, leave the cluster
    quarantine, racks, ensemble    who failed lately, who stands where; which bookies to write to
    dialects, lanes, bookies       protocols v2 and v3; what is under way; connections to bookies
    exchange     single requests in protocol v3
    context      what the shells share, and their limits
    waiters      who waits until entries are confirmed
    writer, reader, recoverer      the shells of the rules
    advanced     a writer to whom the caller gives the ids of entries
    deferred     a writer whose entries are on disk when they are forced
    lac, follower      how far an open ledger has got: told, asked for, waited for
    client       create, open, recover, delete: the way in
"""
