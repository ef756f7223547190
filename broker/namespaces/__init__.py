"""Clusters, tenants, namespaces and their policies, in the metadata store.

records          paths and JSON of the records, which are Pulsar's
tenancy          creating and deleting clusters, tenants and namespaces
policy_types     the values of policies, as Pulsar's tools write them
policy_table     the policies that are enforced: records, checks, inheritance
unused_policies  the policies for which there is no use, and those of a new namespace
policies         the policies in force, and partitioned topics; a cache of their records
"""
