"""Pure: nothing in here knows of tasks, sockets, time or chance."""
