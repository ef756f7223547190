"""The bookie as others see it: a port, a registration, an identity.

In reading order:

    requests.py      one connection: statuses, limits, what both protocols share
    v2.py, v3.py     the two protocols: from wire messages to the store, and back
    serve.py         the port: who may connect, and how much of the bookie each may use
    identity.py      the cookie: whose directories these are
    registration.py  announced in the metadata store, again after a lost session
    collector.py     ledgers that are gone from the metadata are dropped, on proof
    housekeeping.py  what it does by itself, now and then
    repairs.py       what is found damaged is marked, so that peers give it back
    command.py       read-only by command
    host.py          a bookie as a function of its seams
    config.py        settings
    metrics.py, http.py             what it says of itself
    admin.py         what an operator may ask
    __main__.py      the process

What is on the disk is `bookie.storage`'s business; this package never says more than that does.
"""
