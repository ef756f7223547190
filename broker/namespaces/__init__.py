"""Clusters, tenants, namespaces and their policies, as the metadata store has them.

records          paths and JSON of the records, which are Pulsar's
metadata_cache   records that are read often, kept until they change
tenancy          clusters, tenants and namespaces: created and deleted
policies         what namespaces and topics allow
"""
