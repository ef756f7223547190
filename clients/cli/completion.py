"""`daybook completion SHELL`: the script that teaches a shell to complete commands and options."""

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_DAYBOOK_COMPLETE"  # The script calls `daybook` with it; click answers.


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Write the script for completion in a SHELL.

    \b
    bash, in ~/.bashrc:  eval "$(daybook completion bash)"
    zsh, in ~/.zshrc:    eval "$(daybook completion zsh)"
    fish:                daybook completion fish > ~/.config/fish/completions/daybook.fish

    bash has to be version 4.4 or newer.
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(context.find_root().command, {}, "daybook", _VARIABLE).source())
