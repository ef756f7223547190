"""What clients and administrators do in a run, and the notes that they take.

stage        what they share: time and chance, the history, what there is to drain in the end
scene        the stage of a simulated run
messages     values that name their send; what comes back, read
produce      producers, plain and in bursts, closed and opened again
consume      consumers of every type: acknowledgements, refusals, seeks, endings
follow       readers without a subscription
administer   what administrators do meanwhile
drain        the end: everything is read, every subscription is emptied
"""
