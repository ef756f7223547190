"""Ledgers: storage nodes, and the client that replicates ledgers over them.

Read in this order:

    errors        what can go wrong with a ledger, and whether a request took effect
    registry/     what bookies and ledgers keep in the metadata store, and where
    storage/      one bookie's disk: the log, the index, replay
    server/       one bookie as a process
    ledger/       the replicating client: write, read, recover
    replication/  copies that were lost are made again; bookies leave
"""
