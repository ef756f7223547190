"""How many copies a policy may ask for, so that the admin of a tenant does not fill all bookies.

The ensemble bounds the write quorum and the ack quorum.  Super users are not bound: they may make
an exception.  A policy that is stored already counts as it is: a topic must not become unreadable
because the limit was lowered.
"""

from collections.abc import Container, Mapping
from typing import cast

from daybook.broker.errors import PreconditionError
from daybook.broker.namespaces.policy_table import PERSISTENCE, Policy
from daybook.broker.namespaces.policy_types import Persistence
from daybook.broker.security.identity import CALLER


class ReplicaLimit:
    """One instance per broker."""

    def __init__(self, ensemble_max: int, super_users: Container[str] = ()) -> None:
        self._ensemble_max = ensemble_max
        self._super_users = super_users

    def check_all(self, policies: Mapping[str, object]) -> None:
        """Raise PreconditionError if the policies of a new namespace ask for too many copies."""
        assert PERSISTENCE.namespace is not None
        self.check(PERSISTENCE, policies.get(PERSISTENCE.namespace.key))

    def check(self, policy: Policy, value: object) -> None:
        """Raise PreconditionError if the value, None for none, asks for too many copies."""
        if policy is not PERSISTENCE or value is None:
            return
        wanted = cast("Persistence", policy.parse(value)).bookkeeperEnsemble
        if wanted > self._ensemble_max and not self._asks_super_user():
            raise PreconditionError(
                f"persistence: an ensemble has at most {self._ensemble_max} bookies on this"
                f" cluster (ensemble_max), not {wanted}: ask for fewer, or let a super user set it"
            )

    def _asks_super_user(self) -> bool:
        caller = CALLER.get()
        return caller is not None and all(role in self._super_users for role in caller.roles)
