"""One log: brokers that open it, append, roll over, take it from each other; and its cursor.

events     what a broker asks for and says, and what it is told, as values
seams      ledger client and metadata store as the real shells see them
replay     a broker as a table: the real shells, learned history by history
world      the metadata store and the ledgers: what becomes of requests
rules      K and C, from outside
system     all of it, as one system to be searched
"""
