"""The Python client.  `daybook` re-exports what applications need of it.

    connect.py            the way in: a client for the length of a block
    client.py             ask, open producers, consumers and readers
    producer.py           messages to a topic or its partitions
    consumer.py           messages of a topic or its partitions, acknowledged; what readers share
    reader.py             messages from any place on, without a subscription
    messages.py           a message, its id, its offset
    blocking.py           for code without trio; blocking_producer.py; portal.py: its thread
    admin.py              what an administrator does, over HTTP (http.py); blocking_admin.py
    errors.py             what goes wrong: did it take effect, what helps
    limits.py             how much, how long
    arguments.py          what applications name by text

Behind these:

    link.py               one producer or consumer of one topic, kept attached to its broker
    topic_producer.py     ... batches, the queue of sends, receipts
    topic_consumer.py     ... permits, deliveries, seeks; consumer_settings.py, entries.py,
                          acknowledger.py, redelivery.py, start_position.py, positions.py
    lookup.py, pool.py    which broker, and the connections to brokers
    connection.py         one connection: requests, answers, keep-alive
    protocol/             the rules, pure: batching, sends, acks, permits, routing, retry
"""
