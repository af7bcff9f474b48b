"""Condition: what is wrong with a host of a testbed, as its links and processes say."""

import json
from pathlib import Path

from jaxdist.core.text.formatting import format_size
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.iproute import run_command
from jaxdist.launch.testbed.link_shaping import parse_link_rate


def host_health(testbed: EmulatedCluster, host_index: int) -> str:
    """Say what is wrong with a host: its cable, its rate, or its processes.

    Args:
        testbed: the testbed.
        host_index: which host.

    Returns:
        `cut`, `slow, 8.00 Mbit/s`, `stopped`, or several of them; `ok` otherwise.
    """
    space, port = testbed.link_ends(host_index)[1]
    (link,) = json.loads(
        run_command("ip", "-j", "-n", space, "link", "show", "dev", port)
    )
    wrong = [] if "UP" in link["flags"] else ["cut"]
    queues = json.loads(
        run_command("tc", "-j", "-n", space, "qdisc", "show", "dev", port)
    )
    rate = token_bucket_rate(queues)
    if rate != (parse_link_rate(testbed.rate) if testbed.rate else None):
        wrong.append(f"slow, {format_size(rate, 'bit')}/s" if rate else "no limit")
    if any(_is_stopped(pid) for pid in testbed.pids(host_index)):
        wrong.append("stopped")
    return "; ".join(wrong) or "ok"


def token_bucket_rate(qdiscs: list[dict[str, object]]) -> int | None:
    """Return the bits a second of a token bucket among queues; None without one.

    >>> options = {"rate": 25_000_000, "burst": 65536}
    >>> token_bucket_rate([{"kind": "tbf", "options": options}])
    200000000
    >>> token_bucket_rate([{"kind": "noqueue"}])
    """
    for queue in qdiscs:
        options = queue.get("options")
        if queue.get("kind") == "tbf" and isinstance(options, dict):
            return 8 * int(options["rate"])  # `tc` says bytes
    return None


def _is_stopped(pid: int) -> bool:
    try:
        state = Path("/proc", str(pid), "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended in the meantime
    return state == "T"
