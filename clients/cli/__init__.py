"""The program `daybook`.

    main                     the group: commands are imported when they run
    options, output, errors  what commands have in common: options, tables or JSON, sentences
    progress                 what they say while it takes long
    run                      trio inside a command, signals

Clusters:

    standalone               ZooKeeper, bookies and brokers on this machine
    plan, ports, directory   ... what it consists of, where it listens, where its data are
    supervisor, child        ... its parts as processes; zookeeper is one of them
    local, control           look at the parts and break them; control_server is the other side
    bookie, broker, part     one part in the foreground

Users of one:

    produce, consume, topics over the brokers; service is what they share
    ledgers, bookies         past the brokers; metadata and entries are what they share
    version
"""
