"""Exactly-once batches on the simulated cluster: drivers and tasks on the seams, and their audit.

audit       checks X1 to X5 at each change of the metadata, each append and each message read
watching    tells the audit what brokers append, confirm and count
drivers     drivers, tasks and checkpoints, as processes that can be killed and frozen
story       a run with faults that are drawn from its seed
points      the named writes of the protocol, and runs in which somebody dies at one of them
"""
