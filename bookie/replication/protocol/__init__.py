"""Pure rules of re-replication, without tasks, sockets, clocks or random numbers."""
