"""Requests and answers of both protocols, between frames and values.

bookie        BookKeeper v2: by struct, entries passed on as they are
bookie_v3     BookKeeper v3: protobuf in frames
entry_list    which entries of a ledger a bookie has
registry      Pulsar: type number <-> command, versions, features, whole frames
client        Pulsar: connect, look up, produce
consumer      Pulsar: subscribe, permits, deliver, acknowledge
"""
