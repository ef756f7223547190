"""The rules of a broker, as pure machines: they do no input or output.

One connection:

    session               the handshake, and which command may come when
    access, producing     producers: access modes, ids, sends
    consuming             consumers: ids, opening, closing
    refusals, repeats     how each kind of request is refused, and how late if it is repeated

Topics and their consumers:

    topics                each topic is loaded once for all that want it
    dispatch/             which consumer gets which entry

Which broker serves what:

    bundles               how a namespace is cut
    ownership             which bundles are ours; ownership_events is what it is told and asks for
    balance               who gets an unowned bundle, which one should move
"""
