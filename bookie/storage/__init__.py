"""The storage of a bookie: each directory has a log and an index that points into it.

In reading order:

    status.py            the codes that the store answers with
    disk.py              SEAM: directories and files
    records.py           the contents of a log, byte by byte
    log.py               appends records in groups, with one sync each
    segments.py          reads records back from the log, by position
    batches.py           reads a segment from front to end
    deleted_segments.py  notes the segments that were deleted on purpose
    index.py             SEAM: an ordered key-value store; RocksDB
    write_cache.py       entries that no checkpoint has indexed; the blocks of the index
    ledger_state.py      the state of a ledger besides its entries
    entry_locations.py   where entries are; the live bytes of segments; checkpoints
    recovery.py          loads the index and replays the log behind it: torn tails, losses, doubts
    ledger_directory.py  the rules for adds, fences, deletions and reads
    entry_repair.py      writes damaged entries again
    tombstones.py        forgets deleted ledgers
    compaction.py        empties and deletes segments with few live bytes
    scrub.py             reads everything again, slowly, to find damage
    rebuild.py           replaces a damaged index
    markers.py           the files DIRTY and BIRTH of a directory
    directory_runner.py  the background tasks of a directory: start, checkpoints, disk space, stop
    directories.py       which ledger is in which directory
    limbo.py             ledgers that may have lost records, and how that ends
    unknown_ledgers.py   asks the metadata about ledgers that may have been forgotten here
    limits.py            the limits of the storage
    maintenance.py       background work for the server: compaction, scrub, tombstones
    statistics.py        the counters of a store
    store.py             the interface for the server
    offline.py           checks, rebuilds and exports a directory that no bookie uses

The way of an entry: `store.add` -> `ledger_directory` decides -> `log.append` gives it a position
-> `entry_locations` keeps the position -> the log writes and syncs the group -> `directory_runner`
raises the LACs and answers.
"""
