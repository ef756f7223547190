"""The records of ledgers and bookies in the metadata store, in BookKeeper's unchanged layout.

Read in this order:

    paths             the paths of all records
    layout            the cluster: created once, checked by every process; its id
    instance          the one of several roots in which the topics are stored
    registrations     which bookies serve now, and at which addresses
    cookies           which bookies belong to the cluster, running or not
    start_counts      how often each bookie has started, and how far its logs were durable
    ledger_ids        new ids, and those of all ledgers
    underreplication  which ledgers lack copies, and which worker repairs them; pause and resume

Everything here may run on several hosts at once, and again after a request whose outcome is
unknown: nothing is created twice and no record of another process is overwritten.
"""
