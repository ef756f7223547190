"""The workload `ledgers`: processes that write, recover and read ledgers without brokers.

process        one such process; what its clients see goes into a file
worker         what the tasks of a process share
write, recover, read    what they do
tally          counts what the files say while they grow
audit          when all is well again: each ledger is recovered, and read from 0 to its end
whole          at the very end: every copy of every entry is made again, and is read
workload       their round
"""
