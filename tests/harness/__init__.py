"""Helpers that tests of several folders share.

Virtual time and simulated seams:

scheduler    runs tasks in an order that a seed decides, in virtual time
clocks       wall clocks that tests control
network      a network in memory: delays, cuts, partitions; `stream` is one connection
disk         a disk in memory: crashes, torn writes, rot; `index` is the index store on it

Machines:

calls        inputs of a machine as data, for tests that keep or compare them

A broker alone:

broker       its data plane over logs in memory (`fake_log`), and clients that speak raw frames

Real processes:

processes    children of the test: servers of ours, and any other command
standalone   the parts of a running `daybook standalone`
zookeeper    a real ZooKeeper
links        proxies between processes: cut, silent, slow, or losing the next request or answer
"""
