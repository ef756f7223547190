"""The metadata store: versioned records that all hosts of a cluster share.

store           SEAM: the contract
paths           the names of records
session         what a host knows of its session
tree, memory    the reference, in memory, with ZooKeeper's rules
zookeeper       ZooKeeper; kazoo_client is what we use of kazoo, with types
update          compare-and-swap, however often others change a record
"""
