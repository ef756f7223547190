"""`make bench-spark`: Spark on Daybook, beside Spark on Apache Kafka.

    lines       the results: medians, ranges, targets, and the tables
    usage       the processor time and the run-queue wait of both systems, by kind of process
    filling     full batches, and how topics are stored
    sides       both clusters and one Spark session: topics, rows and options
    reading     batch queries
    streaming   streaming queries
    writing     the sinks
    publishing  another client that publishes while Spark reads
    __main__    the cases, in alternating rounds

Both systems run at the same time on one machine, hold the same messages, and take turns in one
run; the first turns of each are not counted.  Only ratios within a run count, because other
programs use the machine, too.

Kafka is one process in KRaft mode without replicas, and does not sync what it writes; Spark uses
its own source and sink for Kafka, in the JVM.  Daybook is the standalone cluster with three
bookies and two brokers.
"""
