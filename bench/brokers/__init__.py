"""`make bench-peers TOPICS=1`: topics of Daybook, of Apache Pulsar and of Apache Kafka, in one run.

    lines       the results: medians, ranges, ratios within rounds, and the tables
    systems     the three clusters, and how they are started
    loads       the client programs behind pipes, and their commands
    python_load our Python client and Pulsar's as such a program
    java/       Pulsar's and Kafka's Java clients as such programs
    cases       one turn of each case
    rounds      the turns in alternation, with processor time and waiting beside each figure
    __main__    the cases, the tables and the JSON

All systems run at the same time on one machine and take turns; the order changes from round to
round.  Each has three replicas of a message, and two of them are on the disk before its receipt.
Pulsar's Java client is one process for Daybook and Pulsar, so that its compiler is as warm for one
as for the other.  Only ratios within a run count, because other programs use the machine, too.
"""
