"""Storms: seeded schedules for the machines of all `protocol` folders in a simulated world.

    python -m tests.storms --seed 4711             one schedule of each kind, as message sequences
    python -m tests.storms --schedules 1000000     a million, of all kinds, until one breaks a rule

chance    every decision of a schedule: drawn from its seed, or given
network   links between hosts: in order or not, fast or slow, some are cut
storm     the base class of all kinds: a schedule of steps, its rules, its trace
walk      storms over the worlds of the model checker (`tests.model`)
kinds     the table of kinds, each in a file: ledger, chain, cursor, dispatch, producer, ownership
shrink    the search for a shorter schedule that breaks the same rule
run       many schedules in several processes, and the states that they met
tally     the number of schedules that ran on each commit
"""
