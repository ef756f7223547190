"""Which broker serves which bundle.

membership    the registration of brokers; removing the records of a dead one
registration  the registration of this broker: joining, being removed, leaving
owner_records requests about the ownership records of bundles
leaving       a bundle that this broker hands over, and its topics that are still here
expected      the bundles that other brokers are handing over to this one
ownership     acquiring, releasing and losing bundles
hand_over     planned hand-overs, and the drain of a broker that stops
peers         the other brokers: whether they are alive
peer_network  connections to other brokers, with TLS where their URLs say so
peer_calls    calls to the admin REST of another broker
leader        the election of the broker that places and balances bundles
balancer      moving bundles
"""
