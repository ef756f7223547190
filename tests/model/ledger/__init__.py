"""One ledger: a writer, recoverers, bookies, and its record in the metadata store.

settings       the size of a model, and how often each fault may happen
messages       requests and answers, in the bytes of the v2 protocol
bookies        the real ledger directory of a bookie, restarted for each request
metadata       the record with its version, and changes of it by compare-and-swap
clients        the base of writer, recoverers and readers: numbered states, tabulated steps
writer         the real WriteProtocol, with as much of its shell as rules need
recoverer      the real RecoverProtocol, likewise
reader         the real ReadProtocol, likewise
network        links: requests and answers in flight, and requests of old connections
sides          a client with its links by number: its tabulated steps, and which to take first
rules          the rules S and W, from outside
system         all of it, as one system to be searched
"""
