"""Topics and their logs.

topics                   the topics that this broker has loaded
topic                    one topic: its log, its producers, its subscriptions
topic_producers          who may produce to a topic
topic_subscriptions      the subscriptions of a topic
topic_ending             unload, terminate and delete
producer                 one producer: entries in, receipts out
backlog                  how far a subscription is behind
rates, stats             what flows, and what the admin REST says of it
topic_log                the seam to the log of a topic
managed_ledger_factory   logs that are managed ledgers
log_configs              copies and retention of logs, by namespace
orphans                  ledgers that nothing names, removed
"""
