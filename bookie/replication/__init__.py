"""Re-replication: lost copies are restored, and a bookie may leave without any loss.

In reading order:

    protocol/replica_check  the state of each replica, the repairs that follow, the metadata change
    protocol/accept_loss    recovery when no bookie can ever answer
    bookie_watcher          the status of each bookie: registered, leaving, away or lost
    checker                 which replicas exist
    replicator              copies entries, and changes the metadata
    rereplicator            repairs one ledger
    worker                  repairs the marked ledgers, the one with the fewest copies first
    auditor                 marks ledgers that lack copies; the election of the one auditor
    status_records          progress and alarms, for operators
    decommission            a bookie leaves
    replace_disk            a bookie comes back with empty directories
    unsafe_recovery         a ledger is closed with loss accepted
    host, config, limits    all parts together; `python -m daybook.bookie.replication`

The marks, the locks and the pause switch are BookKeeper's records (`registry.underreplication`).
The states that an operator sets are records of Daybook's own (`bookie.ledger.admin_states`).
"""
