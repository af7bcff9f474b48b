"""Output of several processes as one: each line with its rank, and one report."""

import re
import sys
from typing import Final

from jaxdist.launch.distributed.exit_codes import EXIT_BAD_INPUT, EXIT_RESTART
from jaxdist.launch.launchers.processes.group import ProcessFailure

# Lines of gloo for each group of devices, and of jax where another process has died.
# No setting turns them off, and who died first is reported in the end.
_NOISE_PATTERN: Final = re.compile(
    r"\[Gloo\] Rank |connected to \d+ peer ranks|coordination_service_agent\.cc"
    r"|Terminating process because the JAX distributed service|coordination_service "
    r"while calling|grpc_status"
)


class PrefixedOutput:
    """Writes each line behind the rank it comes from: `r03 │ `.

    Args:
        num_processes: how many processes there are.
    """

    def __init__(self, num_processes: int) -> None:
        self._digits = max(len(str(num_processes - 1)), 2)

    def __call__(self, rank: int, line: str, error: bool) -> None:
        """Write a line to the output that it was written to."""
        if _NOISE_PATTERN.search(line):
            return
        out = sys.stderr if error else sys.stdout
        # An output in ASCII, as under cron or LANG=C, would raise at the bar.
        utf = (out.encoding or "").lower().startswith("utf")
        out.write(f"r{rank:0{self._digits}} {'│' if utf else '|'} {line}\n")
        out.flush()


def print_failure(failure: ProcessFailure, num_processes: int) -> None:
    """Print which process failed first, with its last lines, to standard error."""
    # The two outputs are buffered apart; what was written first is to appear first.
    sys.stdout.flush()
    report = f"process {failure.rank} of {num_processes} {failure.exit_description}"
    if failure.returncode in (EXIT_BAD_INPUT, EXIT_RESTART):
        # A program that refuses, or asks to be started again, has said why itself.
        report = f"{report}, so all were ended"
    else:
        lines = (f"\n  {line}" for line in failure.last_lines)
        report = f"error: {report}; its last lines:{''.join(lines)}"
    sys.stderr.write(f"{report}\n")
    sys.stderr.flush()
