"""Which broker serves which bundle.

membership   the registration of brokers; removing the records of a dead one
ownership    acquiring, releasing and losing bundles
expected     a bundle that another broker is handing over to this one
hand_over    planned hand-overs, and the drain of a broker that stops
peers        the other brokers: whether they are alive
peer_network connections to other brokers, with TLS where their URLs say so
peer_calls   calls to the admin REST of another broker
leader       the election of the broker that places and balances bundles
balancer     moving bundles
"""
