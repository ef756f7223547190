"""Real processes are broken for as long as one likes, and what their clients saw is judged.

    make soak MINUTES=30                python -m tests.soak --minutes 30 --seed 7
    make soak LEDGERS=1 MINUTES=30      python -m tests.soak --minutes 30 --workloads ledgers
    make soak KILLS=300                 python -m tests.soak --kills 300

A run has one cluster, one list of faults, and one report.  Its clients are of one workload or of
both: `topics/` and `ledgers/`.  Connections lead through the links of `tests/harness`.

disk         the disk of a bookie, in a mood; `bookie` is the process on it
damage       what happens to a bookie's files behind its back
cluster      ZooKeeper, bookies, brokers and client processes, whose connections lead through links
faults       the list of faults, how one is drawn, and which may happen at the same time
nemesis      carries them out
kills        the other plan: the owner of a topic is killed, again and again
takeovers    how long no message was acknowledged after a kill: quantiles, histogram
round        storm, healing, reading everything, judging
soak         rounds, one after the other
report       what came of them; `progress` is shown meanwhile

The clients of topics are those of the simulator's workloads, the judges those of `tests/history`.
"""
