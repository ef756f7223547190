"""Topics served to producers and consumers.

Read in this order.  The rules, pure, are in `protocol/`; here is what carries them out.

Topics, from the wire to the log:

    accept              the service port
    client_connection   one client: its life, what is open; `commands` for what it says, `requests`
                        for what takes time, `refused_requests` for what is refused
    topics              loading a topic once for all who ask, unloading, dropping
    topic               producers and subscriptions over one log: `topic_ending`, `topic_producers`,
                        `topic_subscriptions`, `producer`, `subscription`, `feeder`, `consumer`
    topic_log           SEAM: the log under a topic; `managed_logs` is the real one
    stats, rates        what can be said in numbers

Which broker serves what:

    records             paths and JSON in the metadata store, which are Pulsar's
    membership          who is there, who owns what, how a dead broker is removed
    ownership           our bundles
    peers               is another broker dead as a process?
    leader, balancer    who gets an unowned bundle; evening out
    lookup              which broker serves a topic
    policies, tenancy   clusters, tenants, namespaces, and what they allow; `watched` keeps them
    log_configs         copies and retention of a namespace's logs

For people:

    operations          what an administrator can do; `owned_topics`, `topic_operations`, `fan_out`
    admin/              Pulsar's REST over it
    metrics             Prometheus
    config, logs        settings; what is said while it runs, and some of it `seldom`
    server              all parts put together; `python -m daybook.broker`
"""
