"""Who gets which entry: one machine for each type of subscription.

Left what a machine is told, right what it wants done; `want()` says what to read next.

    Joined, Left, Permits, Blocked, Writable        Deliver, Taken
    Redeliver, Acked, AckedUpTo, Cleared            Rewind
    Brought (what a read brought), Tick             Activate

Reading, cursors and sockets are the shell's (`broker.dispatch`); entries are opaque tokens.

    pending      what is under all of them: consumers and permits, unacknowledged entries, replay
    exclusive    one consumer gets everything, in order
    failover     one of several does, until it leaves
    shared       each entry goes to one of them, whoever has permits
"""
