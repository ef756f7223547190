"""A cluster of real processes for tests: ZooKeeper, bookies and brokers, which tests may kill."""

from daybook.clients.testing.standalone import StandaloneProcess as StandaloneProcess
