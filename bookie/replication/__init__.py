"""Re-replication: lost copies are restored, and a bookie may leave without any loss.

In reading order:

    protocol/copies      the state of each copy, and the repairs that follow from it
    protocol/replace     the one change of metadata
    protocol/lost        when a missing bookie counts as lost
    protocol/backlog     which ledger is repaired next
    protocol/pace        rate limit, progress and remaining time
    protocol/accept_loss recovery when no bookie can ever answer
    marks, election      BookKeeper's records: underreplicated ledgers, locks, switch, auditor
    board                Daybook's own: progress and alarms (see also `bookie.ledger.admin_states`)
    members              the status of each bookie: registered, leaving, away or lost
    checker              which copies exist
    replicator           copies entries, and changes the metadata
    mender               re-replicates one ledger
    worker, auditor      the worker repairs marked ledgers, the auditor marks them
    decommission         a bookie leaves
    readmission          a bookie comes back with empty directories
    forced               a ledger is closed with loss accepted
    host, limits, config all parts together; `python -m daybook.bookie.replication`
"""
