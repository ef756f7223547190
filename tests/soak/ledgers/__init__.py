"""The ledger layer alone, on real processes: bookies and ZooKeeper are broken, clients are, too.

    make soak LEDGERS=1 MINUTES=30      python -m tests.soak.ledgers --minutes 30 --seed 7

moods        what a disk may do, as data, in a file that is read while it does it
disk         SEAM disk: the real one, in a mood
bookie       a bookie on such a disk, as a process
cluster      ZooKeeper, bookies and clients as processes, with links between; orders to them
faults       what can happen to them, drawn from the seed
nemesis      does it; rots the one disk that may rot
worker       a process with writers, recoverers or readers; what they see goes into a file
write, recover, read    what these do
tally        counts what the files say while they grow
storm        a round: storm, healing, recovering and reading everything, judging
soak         rounds, one after the other; the report

The judge is that of `tests/history`, with its rules about entries.
"""
