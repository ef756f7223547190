"""Schemas of topics: what a schema is, when two are the same, and which may follow which.

schema           a schema as a value; its types, and its forms on the wire and in REST
avro             parses Avro schemas; tells whether a reader understands what a writer wrote
protobuf         the root message of a Protobuf descriptor
validation       which schemas may be stored at all; the identity of a schema
compatibility    the strategies: which schema may follow the versions that a topic has
"""
