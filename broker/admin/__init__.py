"""Pulsar's admin REST over `broker.admin.operations`.

handling       from an HTTP request to a call and back: arguments, JSON, refusals
namespaces     clusters, tenants, namespaces, brokers
topics         topics, partitions, subscriptions; look-up over HTTP
app            all of it, with metrics and health
http           the port
calls          one broker asks another
"""
