"""The Python client.  `daybook` re-exports what applications need of it.

    connect.py             the entry point: a client for the length of a block
    client.py              the client: answers questions, opens producers, consumers and readers
    options.py             the options of what it opens, for the clients without trio
    producer.py            a producer of a topic or of all its partitions
    consumer.py            a consumer of a topic or of all its partitions; the base of readers
    multi_topic.py         a consumer of several topics; topic_choice.py has lists and patterns
    reader.py              a reader, which starts anywhere and needs no subscription
    table_view.py          a topic as a mapping of each key to its latest value
    message_id.py          positions: the id of a message, and an offset
    messages.py            a message with its properties
    blocking.py            the same client without trio; also blocking_producer.py and
                           blocking_table_view.py
    portal.py              the thread in which the client without trio runs
    aio.py                 the same client on asyncio
    guest.py               trio on top of the event loop of asyncio
    fork.py                clients in a process that was forked
    admin.py               the admin client, over HTTP (http.py); also blocking_admin.py
    errors.py              the errors, with their outcome and remedy
    limits.py              sizes and timeouts
    arguments.py           checks of arguments

    schemas/               typed messages: values to bytes and back

Behind these:

    sources.py             the consumers and readers that a client has open
    connection_handler.py  keeps one producer or consumer of one topic attached to its broker
    topic_producer.py      ... a producer: batches, the queue of sends, receipts
    topic_consumer.py      ... a consumer: permits, deliveries, seeks
    message_queue.py       messages that have arrived, of all partitions; entries.py unpacks them
    acknowledger.py        sends acknowledgements; redelivery.py asks for messages again
    pipe.py                consumes, transforms and produces, each output once; also
                           pipe_partition.py and transformation.py
    dead_letters.py        sends messages that are given up to retry and dead letter topics
    start_position.py      where a reader starts and where a seek leads
    lookup.py, pool.py     which broker serves a topic, and the connections to brokers
    connection.py          one connection: requests, answers, keep-alive
    protocol/              the rules, pure: batching, sends, acks, ack timeouts, permits, routing,
                           retry (of attempts), letters (retry and dead letter topics), piping
"""
