"""Memory that a process frees stays with it."""

import subprocess
import sys

import pytest

from jaxdist.core.plan import Plan
from jaxdist.launch.devices import prepare
from jaxdist.launch.devices.jax_environment import retain_freed_memory
from jaxdist.launch.devices.prepare import Platform

SIZE = 64 << 20
PROGRAM = f"""
import resource, sys
from jaxdist.launch.devices.jax_environment import retain_freed_memory
if sys.argv[1:]:
    assert retain_freed_memory()

def touched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    room = bytearray({SIZE})
    room[::4096] = b"x" * len(room[::4096])
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

touched()
print(touched())
"""


def pages(*words):
    """Touch as much memory twice in a new process; return the new pages of the last."""
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="pages are kept on Linux alone: mallopt is of the GNU C library",
)
def test_what_was_freed_does_not_come_anew():
    new, kept = pages(), pages("keep")
    assert kept < SIZE / 4096 / 50
    assert kept < new


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not retain_freed_memory({})


def test_what_a_user_has_set_stays():
    assert not retain_freed_memory({"MALLOC_ARENA_MAX": "4"})
    assert not retain_freed_memory({"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"})


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_pages_are_kept_where_devices_are_processors(platform, monkeypatch):
    asked = []
    found = Platform(name=platform)
    monkeypatch.setattr(prepare, "find_platform", lambda environ: found)
    monkeypatch.setattr(prepare, "retain_freed_memory", lambda: asked.append(platform))
    monkeypatch.setattr(prepare, "_count_devices", lambda name: (name, 1))
    prepare.prepare_devices(Plan(), explicit=False)
    assert asked == ["cpu"] * (platform == "cpu")
