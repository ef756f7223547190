"""The command line program `daybook`.

    main, lazy               the group of commands; a command is imported when it runs
    options, output, errors  shared by commands: options, tables or JSON, errors as sentences
    confirm                  the question before something is destroyed
    progress                 reports on standard error while a command takes long
    run                      runs the asynchronous side of a command; signals

Clusters:

    standalone               ZooKeeper, bookies and brokers on this machine
    plan, ports, directory   the parts of such a cluster, their ports, the directory of its data
    supervisor, child        run its parts as processes
    zookeeper, zookeeper_jars  the ZooKeeper server as one of them
    local, control           show the parts and break them; control_server is the other side
    bookie, broker, service  run one server in the foreground
    bookie_directory         work on the directories of a stopped bookie

Topics, over the brokers:

    produce, consume, topics, tenants, namespaces, bundles, brokers, schemas, sinks, explain
    many_topics              requests for several topics, with one summary
    namespace_deletion       deletes a namespace until it is gone
    bundle_loads             what the bundles of a namespace carry
    broker_client            shared by them: time limits, names, sentences for errors
    not_found                the command that shows what exists

The whole cluster, over the brokers, in ZooKeeper and on the bookies:

    doctor                   what needs attention, and what to do about it
    doctor_questions         asks; doctor_answers has what was answered, doctor_checks the verdicts

Ledgers and bookies, directly in ZooKeeper and on the bookies:

    ledgers, bookies, cluster, autorecovery
    metadata, ledger_client  shared by them: a session with ZooKeeper, a ledger client
    ledger_references        the topics and subscriptions that refer to a ledger
    bookie_liveness          the bookies that serve, do not answer, or are gone
    recovery_status          the state of auto-recovery

    version
"""
