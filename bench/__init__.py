"""The measurements: `make bench` prints a table and writes JSON beside it.

    limit       what this machine can do for the same flow of bytes, without a broker
    cluster     a standalone cluster as a child process, and its load generators
    cases       one function for each figure
    __main__    all of them, or those that are named

Speed is judged by ratios in one run on one machine: figures of different days do not compare.
"""
