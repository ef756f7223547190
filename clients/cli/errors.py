"""The error that a command shows as one sentence instead of a stack trace."""

import click


class UserError(click.ClickException):
    """The user can correct the cause; the message is one sentence that says how."""
