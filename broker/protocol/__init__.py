"""The rules of a broker, pure.

One connection:

    session               the handshake, the commands admitted, keep-alive
    access, producing     producers: access modes, ids, sends
    consuming             consumers: ids, permits, acknowledgements
    refusals              how each kind of request is refused, and how late if it is repeated

All connections of a role or an address:

    refusal_paces         how late a request is refused if such ones were refused often

Topics and their consumers:

    topics                loading a topic once for all callers; its three ways to end
    dispatch/             which consumer gets which entry

The broker that serves a bundle:

    bundles               how a namespace is split into bundles
    hand_over             which topics of a bundle change hands next
    ownership             which bundles this broker owns
    balance               which broker gets an unowned bundle, which bundle should move

    watchdog              when a broker that answers nobody ends itself
"""
