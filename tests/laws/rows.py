"""Runs a worker on every host, and reads the lines of JSON that each one prints."""

import json
import os
import sys


def rows_of(hosts, worker, *given, timeout=280):
    """Return for each line that the workers print a row of every rank."""
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = (sys.executable, str(worker), json.dumps(given))
    done = hosts.run(command, timeout=timeout, env=env)
    each = [[line for line in r.stdout.splitlines() if line[:1] == "{"] for r in done]
    return [[json.loads(line) for line in ranks] for ranks in zip(*each, strict=True)]
