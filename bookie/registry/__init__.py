"""What ledgers and bookies keep in the metadata store, and where: BookKeeper's layout, as it is.

Read in this order:

    paths          where everything is
    layout         the cluster: created once, checked by everybody; its id
    instance       which of several roots the topics of the metadata store are kept in
    registrations  which bookies serve now, and where
    cookies        which bookies belong to the cluster, here or away
    ledger_ids     new ids, and those of all ledgers
    numbers        a number in what others have written

Everything here may run on several hosts at once, and again after a request whose outcome is
unknown: nothing is created twice and nothing of others is overwritten.
"""
