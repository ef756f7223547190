"""The rules of replication, pure: nothing here performs I/O, reads a clock or draws a number.

placement    write sets, and when enough bookies have answered
write        append, confirm, change the ensemble
read         whom to ask next, and when an entry is absent
recover      fence, read on, write back, close
"""
