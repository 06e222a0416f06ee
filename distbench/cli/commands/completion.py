"""``distbench completion``: a script that completes commands and options in a shell.

The script holds all words, so that pressing TAB starts no Python.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from distbench.cli.options import argument, check_choice
from distbench.cli.output import print_text

_BASH_TEMPLATE = """\
_distbench() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words
    case $COMP_CWORD:${{COMP_WORDS[1]}} in
        1:*) words="{commands}" ;;
{cases}
    esac
    # what is no command or option is a file, such as a suite or the folder of a run
    if [[ $COMP_CWORD -eq 1 || $word == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _distbench distbench
"""
_ZSH_PREFIX = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
_INSTALL_HINTS = {
    "bash": 'eval "$(distbench completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(distbench completion zsh)" in ~/.zshrc',
    "fish": "distbench completion fish > ~/.config/fish/completions/distbench.fish",
}

CommandOptions = dict[str, str]
"""Names of options, each with its help."""


def completion(
    shell: Annotated[str, argument("SHELL", f"{', '.join(_INSTALL_HINTS)}.")],
) -> int:
    """Print a script with which a shell completes commands."""
    check_choice("SHELL", shell, _INSTALL_HINTS)
    commands = _commands()
    print_text(f"# To use it: {_INSTALL_HINTS[shell]}")
    print_text(
        _fish(commands) if shell == "fish" else (_ZSH_PREFIX if shell == "zsh" else "") + _bash(commands)
    )
    return 0


def _commands() -> dict[str, CommandOptions]:
    """Every command with its options, read from the parser."""
    commands = {}
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        module = importlib.import_module(f"{__package__}.{file.stem}")
        app = typer.Typer(add_completion=False)
        app.command()(getattr(module, file.stem))
        options = {
            name: getattr(parameter, "help", None) or ""
            for parameter in get_command(app).params
            for name in (*parameter.opts, *parameter.secondary_opts)
            if name.startswith("-")
        }
        commands[file.stem.rstrip("_")] = {**options, "--help": "Show this message and exit."}
    return commands


def _bash(commands: dict[str, CommandOptions]) -> str:
    cases = [f'        *:{name}) words="{" ".join(options)}" ;;' for name, options in commands.items()]
    return _BASH_TEMPLATE.format(commands=" ".join(commands), cases="\n".join(cases))


def _fish(commands: dict[str, CommandOptions]) -> str:
    lines = [f"complete -c distbench -n __fish_use_subcommand -f -a {name}" for name in commands]
    for command, options in commands.items():
        for name, text in options.items():
            kind, word = ("l", name[2:]) if name.startswith("--") else ("s", name[1:])
            bare = re.sub(r"['\\]", "", text)
            lines.append(
                f"complete -c distbench -n '__fish_seen_subcommand_from {command}' -{kind} {word} -d '{bare}'"
            )
    return "\n".join(lines)
