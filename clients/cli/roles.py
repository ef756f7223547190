"""The name of a role as an argument of a command."""

import click

_CHARS_MAX = 256


class Role(click.ParamType[str]):
    """A role that a client can have: brokers know no other."""

    name = "role"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        role = str(value)
        if not role:
            self.fail("a role has a name: it is not empty.", param, ctx)
        if len(role) > _CHARS_MAX or not role.isprintable():
            self.fail(f"a role has printable characters, at most {_CHARS_MAX}.", param, ctx)
        return role


ROLE = Role()
