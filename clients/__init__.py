"""Applications of a cluster: they know the wire, and the ledger tools know ledgers.

python/     the client for applications, on trio and blocking; `daybook` re-exports it
spark/      topics as Spark tables and streams
cli/        the program `daybook`
testing/    whole clusters for tests, demonstrations and measurements
"""
