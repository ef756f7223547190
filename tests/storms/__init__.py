"""Storms: the machines of all `protocol` folders, and the world around them as plain data.

    python -m tests.storms --seed 4711             one schedule of each kind, as message sequences
    python -m tests.storms --schedules 1000000     as many, from all kinds, until one breaks a rule

chance    every decision of a schedule: drawn from its seed, or given
network   links between hosts: first in first out, slow ones, ones that are cut
storm     what all kinds have in common: a schedule of steps, its rules, its trace
walk      storms over the worlds of the model checker (`tests.model`)
kinds     one a file: ledger, chain, cursor, dispatch, producer, ownership
shrink    a schedule that breaks a rule, made short
run       many schedules, on several processes; what they met; the tally
"""
