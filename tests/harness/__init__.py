"""Helpers that tests of several folders share.

clocks       wall clocks that tests control
processes    children of the test: servers of ours, and any other command
standalone   the parts of a running `daybook standalone`
zookeeper    a real ZooKeeper as a process
links        proxies between processes: cut, silent, slow, or losing the next request or answer
"""
