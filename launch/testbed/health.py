"""Health: what is wrong with a host of a testbed, by its link and its processes."""

import json
from contextlib import suppress
from pathlib import Path

from jaxdist.core.text.formatting import format_size
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.link_shaping import parse_link_rate
from jaxdist.launch.testbed.namespaces import run_command


def host_health(testbed: EmulatedCluster, host_index: int) -> str:
    """Say what is wrong with a host: its cable, its rate, or its processes.

    Args:
        testbed: the testbed.
        host_index: which host.

    Returns:
        `cut`, `slow, 8.00 Mbit/s`, `stopped`, or several of them; `ok` otherwise.
    """
    space, port = testbed.link_ends(host_index)[1]
    shown = run_command("ip", "-j", "-n", space, "link", "show", "dev", port)
    # UP is the administrative state, which a cut sets; the carrier would be lost at
    # either end of the cable.
    (link,) = json.loads(shown)
    wrong = [] if "UP" in link["flags"] else ["cut"]

    shown = run_command("tc", "-j", "-n", space, "qdisc", "show", "dev", port)
    rates = [q["options"]["rate"] for q in json.loads(shown) if q["kind"] == "tbf"]
    rate = 8 * int(rates[0]) if rates else None  # `tc` says bytes
    # Both are compared as numbers: `1gbit` and `1000mbit` are the same rate.
    if rate != (parse_link_rate(testbed.rate) if testbed.rate else None):
        wrong.append(f"slow, {format_size(rate, 'bit')}/s" if rate else "no limit")

    for pid in testbed.pids(host_index):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            # The state is the field behind the command, which may itself hold brackets.
            stat = Path("/proc", str(pid), "stat").read_text()
            if stat.rpartition(") ")[2][0] == "T":
                wrong.append("stopped")
                break
    return "; ".join(wrong) or "ok"
