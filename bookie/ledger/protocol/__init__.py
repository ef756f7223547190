"""The rules of replication as pure state machines: no I/O, no clock, no random numbers.

placement    write sets, and when enough bookies have answered racks        ensembles that span
racks write        append, confirm, change the ensemble, continue without a bookie deferred
entries that are acknowledged first, and on disk once they are forced read         which bookie to
ask next, and when an entry is absent recover      fence, read on, write back, close update       a
change of metadata by compare-and-swap, until its result is known
"""
