"""Tests with Apache BookKeeper's software: its client on our bookies, ours on its, and mixtures.

`make interop` fetches the jars and runs all of this; no test here runs without it.

    cluster.py     ZooKeeper, bookies of both kinds, in one or several clusters
    kafka.py       one Kafka broker, from jars
    peer.py        Apache's client and tools, in a JVM behind a pipe
    java/          the JVM's program and its libraries
    operations_table.py  the operations of Pulsar's clients, and the table of them in `docs`
    test_*.py      the behavior that each side expects of the other
"""
