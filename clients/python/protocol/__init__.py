"""The rules of the client, pure.

batching    what goes into the next batch
sends       entries without a receipt: one queue, in order
routing     which partition a message goes to
permits     how much a broker may send ahead
acks        what the application is done with
retry       how long to wait before the next attempt
"""
