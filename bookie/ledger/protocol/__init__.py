"""The rules of replication, pure: nothing here performs I/O, reads a clock or draws a number.

placement    write sets, and when enough bookies have answered
racks        ensembles that span racks
write        append, confirm, change the ensemble, go on without a bookie
deferred     entries that are taken first, and on disk when they are forced
read         whom to ask next, and when an entry is absent
recover      fence, read on, write back, close
update       a change of metadata by compare-and-swap, until it is known what became of it
"""
