"""Re-replication: what has lost copies gets them back; a bookie may leave without any loss.

In reading order:

    protocol/copies      what became of each copy, and what has to be done about it
    protocol/replace     the one change of metadata
    protocol/lost        when a missing bookie counts as lost
    protocol/backlog     what is mended next
    protocol/pace        how fast, how far, until when
    protocol/accept_loss recovery when nobody can know any more
    marks, election      Apache's records: what lacks copies, locks, the switch, the auditor
    board                our own: progress and alarms (see also `bookie.ledger.admin_states`)
    members              who is here, leaves, is away, is lost
    checker              which copies there are
    replicator           copies them, and changes the metadata
    mender               one ledger
    worker, auditor      one mends what is marked, the other marks
    decommission         a bookie leaves
    readmission          a bookie comes back with empty directories
    forced               a ledger is ended with loss accepted
    host, limits, config the whole of it; `python -m daybook.bookie.replication`
"""
