"""The schemas of topics, as they are stored and enforced; `protocol/schemas` has the rules.

records     Pulsar's formats: the record of a topic, and the entry of a version
ledgers     one ledger for each version
registry    the versions of all topics: read, add, delete
orphans     removal of ledgers that no record names
admission   what is checked when a producer or a consumer comes

A topic's versions are a record in the metadata store, which changes by compare-and-swap only.  The
partitions of a topic share its schemas, so several brokers may add versions at the same time.
"""
