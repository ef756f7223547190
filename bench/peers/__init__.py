"""Beside Apache BookKeeper: its Java client and its bookies, and ours, on one machine in one run.

`make bench-peers` fetches it (as `make interop` does), prints a table and writes JSON.

    sides       the pairs of a client and three bookies, and how they are started
    load        our client as a load, behind a pipe
    java/       Apache's client as the same load
    ticker      the beat of a load that keeps to a rate
    watch       what processes use; how to begin with a quiet disk and a cold cache
    rows        what a measurement says, and how much of it is measured
    writing     appends: throughput, latency, many ledgers
    reading     a long ledger, interleaved ones, beside a writer
    failing     recovery of a ledger, restart of a bookie
    __main__    all of them, or those that are named

E=3, WQ=3, AQ=2, plain v2, a sync before every acknowledgement.
"""
