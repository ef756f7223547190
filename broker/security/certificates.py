"""Roles of client certificates: the common name, or the role that a table gives it.

The connection has verified the certificate before.  The module is pure.
"""

from collections.abc import Mapping

from daybook.broker.security.identity import Identity, checked_role
from daybook.broker.security.tokens import WrongCredentialsError


def identity_of(common_name: str, roles: Mapping[str, str]) -> Identity:
    """Return the identity that a certificate with this common name proves.

    With a table, only the names in it have a role.  Raise WrongCredentialsError.
    """
    role = checked_role(roles.get(common_name) if roles else common_name)
    if role is None:
        raise WrongCredentialsError(
            "certificate",
            "the client has no certificate whose common name is a role of this broker",
        )
    return Identity(role, "tls")
