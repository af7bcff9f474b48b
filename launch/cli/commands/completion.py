"""`jaxdist completion SHELL`: a script that completes command lines at Tab."""

import sys
from argparse import Namespace

from jaxdist.launch.cli.parser import CommandParser

summary = "print a script that completes commands, options and keys"
example = ""


def add_arguments(parser: CommandParser) -> None:
    """Take a shell."""
    for shell, line in (
        ("bash", 'eval "$(jaxdist completion bash)" in ~/.bashrc'),
        ("zsh", 'eval "$(jaxdist completion zsh)" in ~/.zshrc'),
        ("fish", "jaxdist completion fish | source, in config.fish"),
    ):
        parser.add_form(shell, f"for {shell}: {line}", example="")
    # What the scripts ask at each Tab.
    words = parser.add_form(
        "words", "print what the last word may become", example="", hidden=True
    )
    words.add_argument("--shell", required=True)
    words.add_program()


def run(args: Namespace) -> int:
    """Print the script; or an answer to it."""
    from jaxdist.launch.cli.completion import SHELLS, answer_shell

    if args.action == "words":
        lines = answer_shell(args.shell, args.program)
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return 0
    sys.stdout.write(f"# completion of jaxdist for {args.action}\n")
    sys.stdout.write(SHELLS[args.action])
    return 0
