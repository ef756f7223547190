"""Bytes and connections: what travels between processes; the metadata store.

Read in this order:

    errors              what a peer can send wrong, what a connection can do to us
    fields, protobuf    integers inside frames; what the protobuf runtime does not check
    topics              names of topics
    digest, entry       an entry as bookies store it, and what protects it
    compression, batch  messages inside an entry
    messages/           requests and answers of both protocols; proto/ has their definitions
    transport, tcp      SEAM network, and TCP behind it
    arena, outbox       where received bytes live; what is to be sent
    connection          frames over a stream
    clock               SEAM wall clock
    metadata/           SEAM metadata store: ZooKeeper, or memory
    settings            a TOML file, then the environment over it
    process             what a server sets for its own process
"""
