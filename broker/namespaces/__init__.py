"""Clusters, tenants, namespaces and their policies, in the metadata store.

records     paths and JSON of the records, which are Pulsar's
tenancy     creating and deleting clusters, tenants and namespaces
policies    the policies of namespaces, and partitioned topics; a cache of their records
"""
