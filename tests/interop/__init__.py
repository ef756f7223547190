"""With Apache BookKeeper's own software: its client on our bookies, ours on its, and mixtures.

`make interop` fetches the jars and runs all of this; nothing here runs without it.

    cluster.py     ZooKeeper, bookies of both kinds, in one or several clusters
    peer.py        Apache's client and tools, in a JVM behind a pipe
    java/          that program, and what it needs
    test_*.py      what each side has to do for the other
"""
