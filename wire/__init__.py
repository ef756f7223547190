"""Bytes and connections between processes, and the metadata store.

Read in this order:

    errors              errors in received bytes, and the loss of a connection
    fields, protobuf    integers inside frames; checks that the protobuf runtime leaves out
    topics              names of topics
    digest, entry       an entry as bookies store it, and its digest
    compression, batch  messages inside an entry
    messages/           requests and answers of both protocols; proto/ has their definitions
    transport, tcp      SEAM network, and TCP behind it
    tls_files, tls      certificates as files; TLS over any stream
    arena, outbox       memory for received bytes; the queue of bytes to send
    connection          frames over a stream
    http                the HTTP port; http_framing reads strictly, http_body has bodies of requests
    clock               SEAM wall clock
    metadata/           SEAM metadata store: ZooKeeper, or memory
    settings            a TOML file, overridden by the environment
    process             memory, garbage collection and open files of a server process
    interpreter         the build of the Python that runs
    rate_limit          the rate of background work
    version             the version of Daybook
"""
