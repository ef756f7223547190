"""The replicating client of ledgers: any number of bookies, one writer, recovery.

Read in this order:

    metadata           fragments, quorums and state of a ledger, and their record
    protocol/          the rules, pure: placement, racks, write, deferred, read, recover, update
    metadata_store     the records of ledgers in the metadata store: read, compare-and-swap
    admin_states       admin states of bookies: read-only, retiring, leaving
    racks, ensemble    racks of bookies; the usable bookies, and the choice among them
    codecs             protocols v2 and v3
    bookie_client      connections to bookies, and the adds and reads under way on them
    request_channel    single requests with ids; batches: batch reads over such a channel
    context            the objects and limits that writers, readers and recoveries share
    writer, reader, recovery    the shells of the rules
    deferred_writer    writers with a deferred sync, and with entry ids given by the caller
    lac                the LAC of an open ledger: announced, read, waited for
    client             create, open, recover and delete ledgers
"""
