"""`jaxdist report RUN`: the report of a run, made again from what its folder holds."""

from argparse import Namespace

from jaxdist.launch.arguments import Parser, add_folder, add_run

summary = "write the report of a run again, with what is known since it ended"


def add_arguments(parser: Parser) -> None:
    """Take a run."""
    add_run(parser, "run")
    add_folder(parser)


def run(args: Namespace) -> int:
    """Write the report."""
    from jaxdist.launch.console import console
    from jaxdist.launch.report import write_report
    from jaxdist.launch.runs import find_run

    folder = find_run(args.run, folder=args.dir)
    console().print(f"wrote {write_report(folder.path)}")
    return 0
