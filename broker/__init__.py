"""A broker: it serves topics to producers and consumers, over managed ledgers.

Read the folders in this order.  `protocol/` has the rules, without trio, sockets or a clock; the
other folders own the sockets, the tasks and the time.

    protocol/      the rules as state machines: sessions, producers, dispatch, ownership, balance
    service/       the binary protocol's port: connections, commands, requests
    topics/        topics, their producers and their logs
    dispatch/      subscriptions, and delivery to consumers
    ownership/     which broker serves which bundle
    namespaces/    tenants, namespaces and policies, in the metadata store
    admin/         the admin REST, which is Pulsar's
    context        what a connection needs of the broker
    config         the settings; `limits`, those of one client, topic or subscription
    formats        which new formats may be written while brokers of two versions run
    watchdog       two threads that notice when the event loop is stuck
    metrics, logs  what is said while the broker runs
    errors         why a broker refuses a request
    server         all parts put together; `python -m daybook.broker` runs it
"""
