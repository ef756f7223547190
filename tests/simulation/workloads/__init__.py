"""The work of clients and administrators in a run, and the notes that they take.

stage        what all actors share: time and chance, the history, the topics to drain in the end
scene        the stage of a simulated run
messages     values that name their send, and how they are read back
produce      producers, plain and in bursts, closed and opened again
consume      consumers of every type: acknowledgements, refusals, seeks, endings
follow       readers without a subscription
many_topics  many topics that brokers load together
administer   actions of administrators meanwhile
drain        the end: everything is read, every subscription is emptied
"""
