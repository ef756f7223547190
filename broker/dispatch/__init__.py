"""Delivery: from the log of a topic to the consumers of a subscription.

subscription   one subscription: its cursor, its consumers, acknowledgements
dispatcher     reads entries and sends them to the consumers that the rules choose
consumer       one consumer: permits in, entries out
partial_acks   batches of which some messages are acknowledged
entries        what a broker has to know of an entry
memory_limit   how many bytes wait for slow connections
"""
