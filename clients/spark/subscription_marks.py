"""The properties that mark the subscription of a Spark stream, in the statistics of its topic.

This module imports nothing, so that programs without Spark can read it.
"""

PROPERTY_HOST = "daybook.spark.host"  # the host of the driver that created the subscription
PROPERTY_TOPICS = "daybook.spark.topics"  # the topics of the query, as its option names them
