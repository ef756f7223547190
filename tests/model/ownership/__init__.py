"""Who owns a bundle: brokers, their sessions, guards and one ownership record.

store     sessions, guards, the record: what a metadata store does with requests
broker    the real OwnershipProtocol, and what its shell adds
system    all of it, as one system to be searched
"""
