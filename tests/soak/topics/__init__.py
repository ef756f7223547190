"""The workload `topics`: producers, consumers and readers, as in the simulator.

plan       the work of the clients in a round, drawn from the seed
stage      the surroundings of the clients: a clock, a history in a file, counts of events
workload   the round of the clients: work, receipts, draining, reading everything again
"""
