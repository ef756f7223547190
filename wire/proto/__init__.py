"""Definitions of both protocols and of BookKeeper's records in ZooKeeper, and what protobuf's
compiler makes of them.
"""
