"""Delivery: from the log of a topic to the consumers of a subscription.

subscription     one subscription: its cursor, its consumers, moves
consumer         one consumer of it, and what its client is sent
acknowledgements what the consumers acknowledge, and when that is durable
topic_view       the topic as the consumers see it: whole, or compacted
dispatcher       reads entries and gives them to the consumers that the rules choose
unacked_limit    the limit of unacknowledged messages of the whole broker
backlog          how far a subscription is behind
entries          what a broker has to know of an entry
newest           the newest entries, which subscriptions that wait for them share
memory_limit     how many bytes may wait for slow connections
"""
