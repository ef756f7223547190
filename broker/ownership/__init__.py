"""Which broker serves which bundle.

membership   the registration of this broker, and its session
ownership    acquiring, releasing and losing bundles
peers        the other brokers: whether they live, and cleaning up after dead ones
leader       the election of the broker that balances
balancer     moving bundles
"""
