"""The broker's part of exactly-once sinks (`managed_ledger.sinks`).

topic_sinks     applies committed batches to one topic, as its owner
attempts        the staging ledgers that clients write through this broker
sweep           the leader's look at what is pending, and at what is left over

`broker.admin.sink_operations` has what drivers and administrators ask for.
"""
