"""The metadata store: versioned records that all hosts of a cluster share.

store           SEAM: the contract
paths           the names of records
acl             who may do what with a record
protection      which lists new records get, as the tree itself says; announce: who knows it
access          how a process connects, and whom it says it is
session         the session of a host, as the host sees it
tree, memory    the reference, in memory, with ZooKeeper's rules
zookeeper       ZooKeeper; kazoo_client has the parts of kazoo that it uses, with types, and
                kazoo_connection and kazoo_answer stand in for parts of it
update          compare-and-swap, however often others change a record
"""
