"""The ownership of a bundle: brokers, their sessions, guards and one ownership record.

store     the metadata store: sessions, guards, the record, and the outcomes of requests
broker    the real OwnershipProtocol, with the part of its shell that rules depend on
system    all of it, as one system to be searched
"""
