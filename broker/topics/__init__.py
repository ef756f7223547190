"""Topics and their logs.

topics                   the topics that this broker has loaded
topic                    one topic: its log and its life, and its subscriptions
topic_producers          the producers of a topic: who may produce, and who waits
producer                 one producer: entries in, receipts out
waiting_readers          the readers that wait for new entries, and the task that serves them
rates, stats             message rates, and the statistics of the admin REST
topic_log                the seam to the log of a topic
managed_ledger_factory   logs that are managed ledgers, kept as their policies say
bugs                     errors that nobody expected: each costs one topic
upkeep, backlog_quota    message TTL, expiry, quotas, inactive topics
policy_updates           changed policies, for topics that are loaded
orphans                  removal of ledgers that no log names

Imports lead from `broker.service` to `topics` and from `topics` to `broker.dispatch`, which reads
the log through `topic_log`.  A subscription and a producer also name their topic.
"""
