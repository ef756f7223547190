"""The rules of replication, pure: nothing here performs I/O, reads a clock or draws a number.

placement    write sets, and when enough bookies have answered
write        append, confirm, change the ensemble, go on without a bookie
read         whom to ask next, and when an entry is absent
recover      fence, read on, write back, close
update       a change of metadata by compare-and-swap, until it is known what became of it
"""
