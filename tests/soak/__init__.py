"""The soak: breaks real processes for as long as one likes, and judges what their clients saw.

    make soak MINUTES=30                python -m tests.soak --minutes 30 --seed 7
    make soak LEDGERS=1 MINUTES=30      python -m tests.soak --minutes 30 --workloads ledgers
    make soak KILLS=300                 python -m tests.soak --kills 300

A run has one cluster, one list of faults, and one report.  Its clients belong to one workload or to
both: `topics/` and `ledgers/`.  Connections lead through the links of `tests/harness`.

disk         the disk of a bookie, which can fail or be slow; `bookie` is the process on it
damage       damage to the files of a bookie behind its back
cluster      ZooKeeper, bookies, brokers and client processes, whose connections lead through links
faults       the list of faults, the draw of one, and the faults that may happen at the same time
nemesis      the task that carries faults out
kills        the other plan, which kills the owners of topics again and again
takeovers    the times without a receipt after a kill: quantiles, histogram
clock        the clock of the histories
round        a round: storm, healing, reading everything, judging
soak         a run: rounds, one after the other
report       the result of a run; `progress` is shown meanwhile

The clients of topics are those of the simulator's workloads, the judges those of `tests/history`.
"""
