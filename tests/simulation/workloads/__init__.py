"""What clients and administrators do in a simulated run, and the notes that they take.

scene        what they share: the cluster, the history, what there is to drain in the end
messages     values that name their send; what comes back, read
produce      producers, plain and in bursts, closed and opened again
consume      consumers of every type: acknowledgements, refusals, seeks, endings
follow       readers without a subscription
administer   what administrators do meanwhile
drain        the end: everything is read, every subscription is emptied
"""
