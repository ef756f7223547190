"""Which broker serves which bundle.

membership   the registration of brokers; removing the records of a dead one
ownership    acquiring, releasing and losing bundles
peers        the other brokers: whether they are alive
peer_calls   calls to the admin REST of another broker
leader       the election of the broker that places and balances bundles
balancer     moving bundles
"""
