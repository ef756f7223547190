"""What a bookie has on its disks: one log, written once, and an index that points into it.

In reading order:

    status.py       what the store answers
    disk.py         SEAM: files; `growing.py` is the file that a log grows in
    records.py      what a log holds, byte by byte
    log.py          on disk before anyone is told: groups, one sync each
    segments.py     records read back from the log, by position
    replay.py       what is behind the last checkpoint: torn tails, losses, doubts
    index.py        SEAM: an ordered key-value store; RocksDB
    recent.py       entries in memory, and the blocks in which the index keeps them
    ledgers.py      what is known of a ledger besides its entries
    places.py       where entries are, and checkpoints
    boot.py         rows, then the log behind them
    reads.py        the ledgers of a directory: what is answered, what is unknown
    states.py       ledgers are made, fenced, deleted, in limbo; explicit LACs
    volume.py       which entries are accepted
    heal.py         what the disk does not give is written again
    upkeep.py       a directory at work: start, checkpoints, room, stop
    limits.py       what is bounded
    directories.py  which ledger lives in which directory
    suspects.py     ledgers that may have lost something, and how that ends
    contacts.py     ledgers that come for the first time, perhaps
    maintenance.py  what is done behind the requests: room, scrub, tombstones
    store.py        the front: what the server calls

The way of an entry: `store.add` -> `volume` decides -> `log.append` gives it a position ->
`places` remembers that -> the group is written and synced -> `upkeep` raises LACs and answers.
"""
