"""Compaction of topics by key: the last message of each key, in a ledger of its own.

topic_compaction    one instance per topic: the horizon, the compacted ledger, the run under way
compactor           one run: two passes over the topic, and a new compacted ledger
compacted_ledger    finds and reads entries of the compacted ledger by their original positions
source              read by a subscription with `readCompacted`: compacted ledger, then topic
state               the numbers for administrators

`broker.protocol.compaction` has the rules, and `managed_ledger.compacted` the format.
"""
