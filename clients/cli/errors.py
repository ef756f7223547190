"""What the command line says instead of a stack trace."""

import click


class UserError(click.ClickException):
    """Something that the user can put right; the message is one sentence that says how."""
