"""The workload `ledgers`: processes that write, recover and read ledgers without brokers.

process        one such process, whose clients record their history in a file
worker         the state that the tasks of a process share
write, recover, read    the tasks
tally          the counts of events in the files, which grow meanwhile
audit          the check after the faults: each ledger is recovered, and read from 0 to its end
whole          the check after all rounds: every copy of every entry is restored, and is read
workload       the round of these processes
"""
