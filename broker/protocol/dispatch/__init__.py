"""Which consumer gets which entry: one machine for each type of subscription.

On the left the inputs, which are methods; on the right the effects, which are data.  `want()`
returns what to read next, and `entries_read` takes the result.

    joined, left                                          Deliver, Taken
    permits_granted, connection_full, connection_writable Rewind
    redelivery_requested, acked, acked_up_to              Activate
    cursor_moved, entries_read, tick

`broker.dispatch` does the reading, and owns cursors and connections.  To a machine an entry is an
opaque token.

    places       the names of consumers, entries and ranges of keys
    interface    entries, reads, effects, and the methods that all machines have
    blockers     why nothing is delivered, as data
    stall        when a subscription that could deliver counts as stalled
    broker_limit when all subscriptions of a broker together have too much unacknowledged
    pending      what all machines share: consumers and permits, unacknowledged entries, replay
    exclusive    one consumer gets everything, in order
    failover     one of several consumers gets everything, until it leaves
    shared       each entry goes to one of the consumers that have permits
    key_shared   each entry goes to the consumer of its key, in the order of the key
    ranges       which consumer serves which keys
    keys         the entries of one key: those that are out, and those that wait
    chunks       the chunks of one message go to one shared consumer
"""
