"""`remat completion`: scripts that complete verbs, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from remat_cli.cli import COMPLETE
from remat_cli.cli.help import Verb

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=Verb)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes verbs, options, and names of planners, configs and devices.

    \b
    Examples:
      remat completion bash > ~/.local/share/bash-completion/completions/remat
      remat completion zsh > ~/.zfunc/_remat   # with fpath+=~/.zfunc before compinit
      remat completion fish > ~/.config/fish/completions/remat.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None  # click knows the shells above
    click.echo(completion(ctx.find_root().command, {}, "remat", COMPLETE).source())
