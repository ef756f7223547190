"""A broker serves topics to producers and consumers, over managed ledgers.

Read the folders in this order.  `protocol/` has the rules, without trio, sockets or a clock; the
other folders own the sockets, the tasks and the time.  Imports point from `service` to `dispatch`
to `topics` to managed ledgers, and from `admin` to `ownership`.

    protocol/      the rules as state machines: sessions, producers, dispatch, ownership, balance
    service/       the port of the binary protocol: connections, handlers, lookup
    topics/        topics, their producers and their logs
    dispatch/      subscriptions, and delivery to consumers
    ownership/     which broker serves which bundle
    namespaces/    tenants, namespaces and policies, in the metadata store
    admin/         the admin REST, which is Pulsar's
    context        what the handlers of all connections share
    tls            the TLS of its ports, and of its connections to other brokers
    config         the settings; `limits` has the bounds for one client, topic or subscription
    formats        which new formats may be written while brokers of two versions run
    watchdog       two threads that notice when the event loop is stuck
    metrics        what `/metrics` shows
    quarantine_log the lines about bookies that the broker does not use because they failed
    errors         why a broker refuses a request
    parts          the parts of one broker, and what each is given; `part_settings` has what the
                   settings mean for them
    joining        what a broker does in its cluster before it announces itself
    server         runs a broker; `python -m daybook.broker` calls it
"""
