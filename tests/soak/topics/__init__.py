"""The workload `topics`: producers, consumers and readers, as in the simulator.

plan       what they do in a round, drawn from the seed
stage      what they need of a run; their history goes into a file, and is counted
workload   their round: work, receipts, draining, reading everything again
"""
