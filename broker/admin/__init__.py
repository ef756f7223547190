"""Pulsar's admin REST.

operations     the operations of an administrator, without HTTP
handling       from an HTTP request to a call and back: arguments, JSON, refusals
held_refusals  the delay of refusals of a client that is refused too often
body_budget    the memory of long bodies of requests
answer_budget  the memory of long answers; `answer_memory` has that of answers with messages
namespaces     REST of clusters, tenants, namespaces and brokers
policies       REST of the policies of namespaces and topics
replica_limit  how many copies a policy may ask for
topics         REST of topics, partitions and subscriptions; lookup over HTTP
app            the whole application, with metrics and health
"""
