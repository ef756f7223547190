"""One log: brokers that open it, append, roll over, take it from each other; and its cursor.

events     the inputs and outputs of a broker, as values
seams      the ledger client and the metadata store that the real shells use
replay     a broker as a table: the real shells, learned history by history
world      the metadata store and the ledgers: the possible outcomes of requests
rules      the rules K and C, from outside
system     all of it, as one system to be searched
"""
