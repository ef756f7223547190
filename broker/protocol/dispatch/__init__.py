"""Which consumer gets which entry: one machine for each type of subscription.

On the left the events, on the right the effects; `want()` returns what to read next.

    Joined, Left, Permits, Blocked, Writable        Deliver, Taken
    Redeliver, Acked, AckedUpTo, Cleared            Rewind
    Brought (the result of a read), Tick            Activate

`broker.dispatch` does the reading, and owns cursors and connections.  To a machine an entry is an
opaque token.

    pending      what all machines share: consumers and permits, unacknowledged entries, replay
    exclusive    one consumer gets everything, in order
    failover     one of several consumers gets everything, until it leaves
    shared       each entry goes to one of the consumers that have permits
    chunks       the chunks of one message go to one shared consumer
"""
