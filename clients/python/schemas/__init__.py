"""Schemas of the Python client: how the values of an application become the bytes of messages.

    schema        what all of them have in common, and what a broker is told about one
    primitive     texts, numbers, times
    fields        the Avro definition of a class
    json_records  records as JSON, of dataclasses and msgspec structures
    avro_records  records as Avro, of such classes or of an Avro schema (needs fastavro)
    protobuf      messages of Protobuf
    key_value     a pair of two schemas
    auto          values of whatever schema the topic has
    versions      which version a message was written with

`daybook.schemas` re-exports what applications need.
"""
