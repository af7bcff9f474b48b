"""What `jaxdist calibrate` says of levels, takes for sizes, and refuses of them."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from jaxdist.calibrate.alpha_beta_fit import CollectiveTiming
from jaxdist.calibrate.collective_timings import GroupTimings
from jaxdist.calibrate.hosts import HostTopology
from jaxdist.calibrate.levels import (
    add_collective_costs,
    build_levels,
    level_all_reduces,
    timed_groups,
)
from jaxdist.calibrate.measure_cluster import CalibrationResult
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.launch.calibration import measure
from jaxdist.launch.calibration.measure import (
    CalibrationQuery,
    CalibrationReport,
    print_calibration,
)
from jaxdist.launch.cli.main import main
from jaxdist.launch.terminal.console import console
from jaxdist.meshes.clusters.load import load_cluster

FAST, SLOW = 1e10, 1e8
SIZES = [1 << power for power in (10, 13, 15, 17, 19, 21, 23)]


def made(hosts, rates):
    """A machine whose sums go at some rates, size by size."""
    chains = [
        GroupTimings(
            kind="all-reduce",
            group=among,
            timings=tuple(
                CollectiveTiming(
                    kind="all-reduce", payload=size, seconds=1e-4 + size / rate
                )
                for size, rate in zip(SIZES, rates, strict=True)
            ),
        )
        for among in timed_groups(hosts)
    ]
    sums = level_all_reduces(hosts, chains)
    cluster = load_cluster("cpu-fake")
    cluster = replace(cluster, levels=build_levels(hosts, sums, "measured: a test"))
    cluster = add_collective_costs(cluster, hosts, chains, "measured: a test")
    machine = CalibrationResult(cluster=cluster, kernel_timings=(), all_reduces=sums)
    return CalibrationReport(
        result=machine, dtype="float32", output_path=Path("mine.json"), is_primary=True
    )


def said(found):
    out = console()
    out.file = io.StringIO()
    print_calibration(out, found)
    return out.file.getvalue()


def test_each_level_is_said_and_what_is_in_it():
    text = said(made(HostTopology(num_hosts=4, devices_per_host=2), [FAST] * 7))
    assert "  host       2 devices: " in text
    assert "GB/s a device; " in text
    assert "  net        4 hosts: " in text
    assert "GB/s a host; " in text
    assert "sums  " not in text
    assert "switch" not in text


def test_one_level_is_said_as_sums():
    text = said(made(HostTopology(num_hosts=1, devices_per_host=4), [FAST] * 7))
    assert "  sums       25 us a message, " in text
    assert "over 1.02 kB to 8.39 MB" in text


def test_a_quick_calibration_says_what_it_took_from_few_timings():
    found = made(HostTopology(num_hosts=1, devices_per_host=4), [FAST] * 7)
    assert "without --quick" not in said(found)
    text = said(replace(found, quick=True))
    assert "groups of some of the devices" in text
    assert "jaxdist calibrate --devices 4 -o mine.json --force" in text


def test_a_switch_of_algorithm_is_said_as_of_what_is_read():
    found = made(HostTopology(num_hosts=1, devices_per_host=4), [SLOW] * 4 + [FAST] * 3)
    assert "  switch     all-reduce between 131,072 B and 524,288 B: " in said(found)
    (switch,) = found.to_dict()["switches"]
    assert (switch["level"], switch["above"]) == ("data", 1 << 19)


def test_the_object_has_the_sums_of_each_level():
    tree = json.loads(
        json.dumps(
            made(HostTopology(num_hosts=4, devices_per_host=2), [FAST] * 7).to_dict()
        )
    )
    assert [(one["level"], one["devices"]) for one in tree["sums"][::7]] == [
        ("host", 2),
        ("net", 4),
    ]
    assert tree["switches"] == []


@pytest.mark.parametrize("size", ["64 parsecs", "12kB", "9TB", "-1MB", "nan"])
def test_sizes_that_cannot_be_are_refused(capsys, size):
    assert main(["calibrate", "--devices=2", f"--max-size={size}"]) == 2
    said = capsys.readouterr().err
    assert f"--max-size {size} is no size" in said
    assert "remedy   --max-size 64MB" in said


def test_one_device_has_no_links(capsys):
    assert main(["calibrate", "--max-size=64MB"]) == 2
    said = capsys.readouterr().err
    assert "--max-size 64MB, 1 device" in said
    assert "remedy   jaxdist calibrate --devices 2 --max-size 64MB" in said


def test_links_that_are_not_timed_have_no_largest_size(capsys, tmp_path):
    path = tmp_path / "mine.json"
    cluster = made(
        HostTopology(num_hosts=1, devices_per_host=2), [FAST] * 7
    ).result.cluster
    kernels = {"origin": "measured: a test", "peak": 1e9, "timed": []}
    tree = json.loads(cluster.to_json())
    tree["device"]["kernels"] = kernels
    path.write_text(json.dumps(tree))
    words = ["calibrate", "digits", "--cluster", str(path), "--max-size", "64MB"]
    assert main(words) == 2
    assert "--max-size 64MB, --cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("processes", "each", "devices"), [(1, "4", 1), (2, "2", 4), (4, "", 4)]
)
def test_all_devices_of_several_processes_are_measured(
    monkeypatch, processes, each, devices
):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", each)
    monkeypatch.setenv("XLA_FLAGS", "")
    query = CalibrationQuery()
    assert measure._resolve_device_count(query, None, processes) == devices
    with pytest.raises(BadInput, match="do not divide"):
        measure._resolve_device_count(CalibrationQuery(devices=0), None, processes)


@pytest.mark.parametrize(("hosts", "part"), [((1, 8), 1), ((4, 2), 4)])
def test_a_host_makes_its_part_of_the_samples_ready(hosts, part):
    """What is measured is of all hosts, and the number of a cluster is of one."""
    count, devices = hosts
    cluster = made(
        HostTopology(num_hosts=count, devices_per_host=devices), [FAST] * 7
    ).result.cluster
    found = measure._add_input_rate(cluster, 1e6, "measured")
    assert found.input_rate == SourcedNumber(1e6 / part, "measured")
