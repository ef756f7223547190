"""The bookie as other processes see it: a port, a registration, an identity.

In reading order:

    requests.py      one connection: statuses, limits, what both protocols share
    views.py         how much memory the answers of a connection keep
    v2.py, v3.py     the two protocols: from wire messages to the store, and back
    serve.py         the port: who may connect, and how much of the bookie each may use
    identity.py      the cookie: whose directories these are
    registration.py  announced in the metadata store, again after a lost session
    collector.py     drops ledgers that are deleted from the metadata, only on proof
    housekeeping.py  the periodic work: garbage collection, compaction, scrub
    repairs.py       marks ledgers with damaged entries, so that auto-recovery repairs them
    limbo.py         copies from other bookies what this one may have lost
    starts.py        counts the starts, to recognise an older image of a directory
    command.py       read-only by command of an operator
    host.py          a bookie as a function of its seams
    config.py        settings
    metrics.py, http.py             metrics and health
    admin.py         requests of an operator
    __main__.py      the process

`bookie.storage` decides what is on the disk; this package never claims more than the store does.
"""
