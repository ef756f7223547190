"""The rules of a broker, pure.

One connection:

    session               the handshake, what may come when
    access, producing     producers: access modes, ids, sends
    consuming             consumers: ids, permits, acknowledgements
    refusals, repeats     how each kind of request is refused, and how late if it is repeated

Topics and their consumers:

    topics                loaded once for all who ask, let go in one of three ways
    dispatch/             who gets which entry

Which broker serves what:

    bundles               how a namespace is cut
    ownership             which bundles are ours; ownership_events is what it is told and asks for
    balance               who gets an unowned bundle, which one should move
"""
