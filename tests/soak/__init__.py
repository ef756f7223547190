"""Real processes, broken for as long as one likes; what their clients saw is judged.

    make soak MINUTES=30                python -m tests.soak --minutes 30 --seed 7
    make soak KILLS=300                 python -m tests.soak --kills 300
    make soak LEDGERS=1                 python -m tests.soak.ledgers: a package of its own

links        proxies between the parts: cut, silent in one or both directions, slow
cluster      a standalone cluster whose connections lead through links
faults       what can happen to it
nemesis      does it: drawn from the seed, within what the quorums bear
plan         what clients do in a round, drawn from the seed
stage        what clients need of a run; the history goes into a file, and is counted
storm        a round: storm, healing, reading everything, judging
kills        the other kind of round: the owner of a topic is killed, again and again
takeovers    how long nobody got a receipt after a kill: quantiles, histogram
soak         rounds, one after the other; the report
progress     what is shown meanwhile

The clients are those of the simulator's workloads, the judges those of `tests/history`.
"""
