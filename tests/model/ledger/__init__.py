"""One ledger: a writer, recoverers, bookies, and its record in the metadata store.

settings       how large, and what may go wrong how often
messages       requests and answers, in the bytes of the v2 protocol
bookies        the real rules of a ledger directory, started anew for each request
metadata       the record with its version, and changes of it by compare-and-swap
clients        what writer and recoverers have in common: numbered states, tabulated steps
writer         the real WriteProtocol, with as much of its shell as rules need
recoverer      the real RecoverProtocol, likewise
network        links: requests and answers in flight, what is left of old connections
sides          a client with its links by number: its steps, tabulated, and which may come first
rules          S and W, from outside
system         all of it, as one system to be searched
"""
