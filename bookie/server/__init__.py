"""The bookie as other processes see it: a port, a registration, an identity.

In reading order:

    session.py             the state of each connection, the limits, and what all of them share
    response_buffers.py    the limit on the memory that unsent answers hold
    v2.py, v3.py           the two protocols: from wire messages to the store, and back
    port.py                the port: who may connect, and how much of the bookie each may use
    cookie_validation.py   the cookie: whether these directories are those of this bookie
    start_count.py         counts the starts, to recognise an older image of a directory
    registration.py        announces the bookie in the metadata store, again after a lost session
    read_only_state.py     the read-only state that an operator sets
    garbage_collector.py   periodic work: drops deleted ledgers, on proof; compaction; the scrub
    damage_reporter.py     marks ledgers with damaged entries, so that auto-recovery repairs them
    data_integrity.py      copies from other bookies what this one may have lost
    host.py                a bookie as a function of its seams
    config.py              the settings
    http.py                metrics, health and admin requests
    __main__.py            the process

`bookie.storage` decides what is on the disk; this package never claims more than the store does.
"""
