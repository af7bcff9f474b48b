"""Published figures of large clusters, beside what jaxdist predicts with its interval.

    python benchmarks/published_scaling.py                  # all of them, minutes
    python benchmarks/published_scaling.py imagenet_hour    # one

* `imagenet_hour`: ResNet-50 in one hour, efficiency from 8 to 256 P100 (Goyal et al.
  2017, arXiv 1706.02677).
* `horovod_scaling`: images/s of AlexNet, GoogLeNet and ResNet-50 by devices and batch,
  with an all-reduce and with one parameter server (Malik et al. 2018, NYSDS).
* `sparse_512`: a step on 512 V100 with dense, sparse and hierarchical sums, with and
  without overlap (T. T. Nguyen, report of 2022).

* `shuffle_512`: an epoch of ResNet-50 on 512 V100 with samples of local, partial and
  global shuffling (T. T. Nguyen et al. 2022, IPDPS).

Clusters are data sheets (`benchmarks/data/clusters`, `abci`): nothing here is fitted. A
step's interval is that of `jaxdist predict`, nine in ten; of a ratio of two steps of
one network and machine it is that of their order, in which common errors cancel.
"""

import argparse
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from record import add_record_option, row, write_result

from jaxdist.collectives.compress.method import FlatAllReduce
from jaxdist.collectives.registry import make_algorithm
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.network.schedules_by_name import schedule_by_name
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.topologies.registry import make_topology
from jaxdist.oracle.predict import predict
from jaxdist.partition.gradient_buckets import BUCKET_SCOPE
from jaxdist.partition.traffic import PlannedCollective

FILES = Path(__file__).parent / "data" / "clusters"
DEVICES = (1, 64, 256, 400)
"""Devices of the curves; the slides go to about 400 K80."""
BATCHES = (64, 128, 256, 512)
"""Samples of a device, as in the slides."""
ONE_DEVICE = {
    ("institutional-k80", "resnet50", 64): 51.9,
    ("institutional-k80", "alexnet", 512): 656.0,
    ("institutional-p100", "resnet50", 64): 219.0,
    ("institutional-p100", "alexnet", 512): 2987.0,
}
"""Images/s of one device that others measured in the same years, with TensorFlow and
synthetic data (tensorflow.org/performance/benchmarks, May 2017; its P100 is an SXM2).
"""
SAMPLES, SAMPLE_BYTES = 1_281_167, 138e9 / 1_281_167
"""Of ImageNet's training set, as files."""
DISK_B_S = 3.2e9
"""Bytes a second of a host's own disk (ABCI: an NVMe disk of 1.6 TB; Intel P4600)."""
NIC_B_S = 25e9
"""Bytes a second of a host's two network cards, each way (ABCI)."""
FILE_SYSTEM_B_S = (5e9, 10e9, 20e9, 50e9, 100e9)
"""Bytes a second of a file system that all hosts share: what it would have to bring."""


@cache
def described(network, batch):
    """Return the describer of a network on a global batch."""
    words = (f"data.batch={batch}", "optim.accumulate=1", "plan.mesh.data=1")
    norms = ("model.norm=replica",) * (network in ("resnet50", "googlenet"))
    return StepDescriber(resolve_config(network, (*words, *norms)).config, "gpu")


def without_statistics(case):
    """Return a step whose norms sum nothing: each device keeps averages of its own.

    That is what the published programs do. Ours sums the averages of all replicas.
    """
    (ledger,) = case.ledgers
    rows = tuple(one for one in ledger.rows if one.what != "statistics")
    return replace(case, ledgers=(replace(ledger, rows=rows),))


@cache
def cluster_of(name, overlap=None):
    """Return a cluster by name or file, with another overlap where one is given."""
    file = FILES / f"{name}.yaml"
    found = load_cluster(str(file) if file.exists() else name)
    if overlap is None:
        return found
    return found.with_number("overlap", SourcedNumber(overlap, "given: to compare"))


def step(network, where, devices, batch, *, overlap=None, mesh=None, reduce=None):
    """Predict a step of weak scaling.

    Args:
        network: an experiment.
        where: a cluster.
        devices: that split the samples.
        batch: samples of a device.
        overlap: of the cluster; None is its own.
        mesh: in place of all devices along data.
        reduce: how gradients are summed.
    """
    plan = Plan(
        mesh=mesh or MeshShape(data=devices),
        microbatches=1,
        reduce=reduce or ReductionConfig(),
    )
    case = described(network, batch * devices).describe(plan)
    return predict(without_statistics(case), cluster_of(where, overlap))


def predicted(case, value, unit, figure, bounds):
    """Return a row whose range is an interval, and no readings."""
    return row(case, value, unit, figure=figure, readings=bounds) | {"n": None}


def ratio_bounds(first, then, ratio):
    """Return the interval of a ratio of two steps that is at most 1."""
    apart = max(first.order_ratio, then.order_ratio)
    return ratio / apart, min(1.0, ratio * apart)


def imagenet_hour():
    """Efficiency of ResNet-50, 32 images a P100, from 8 to 256 devices."""
    rows = []
    for label, overlap in (("half", None), ("none", 0.0), ("all", 1.0)):
        few, many = (
            step("resnet50", "big-basin", n, 32, overlap=overlap) for n in (8, 256)
        )
        share = few.step_s / many.step_s
        low, high = ratio_bounds(few, many, share)
        print(
            f"overlap {label}: 8 P100 {1e3 * few.step_s:.1f} ms, "
            f"256 {1e3 * many.step_s:.1f} ms, {share:.1%} efficient "
            f"({low:.0%} to {high:.0%})"
        )
        for devices, found in ((8, few), (256, many)):
            case = f"overlap {label}, {devices} P100"
            ends = [1e3 * s for s in found.interval_s]
            rows.append(predicted(case, 1e3 * found.step_s, "ms", "step", ends))
        case = f"overlap {label}, 8 to 256 P100"
        bounds = (100 * low, 100 * high)
        rows.append(predicted(case, 100 * share, "%", "efficiency", bounds))
    epoch_s = 90 * 1_281_167 / (32 * 256) * many.step_s
    print(f"90 epochs on 256, all overlapped: {epoch_s / 60:.0f} min")
    return rows


def server_seconds(size, devices, hosts):
    """Simulate a sum at one parameter server: all devices send, and it answers.

    Args:
        size: bytes of the gradients.
        devices: ranks, of which one is the server.
        hosts: settings of their hosts.
    """
    network = NetworkModel(topology=make_topology("star", devices, hosts))
    schedule = schedule_by_name("parameter_server", devices)
    return simulate_collective(schedule, size, network).seconds


def horovod_scaling():
    """Images/s by devices and batch, all-reduce and parameter server."""
    rows = []
    for where, hosts, most in (
        ("institutional-k80", {"per_host": 4}, 400),
        ("institutional-p100", {"per_host": 2}, 256),
    ):
        inside = {"inside": "pcie", "bandwidth": "100gbit", **hosts}
        for network in ("alexnet", "googlenet", "resnet50"):
            for batch in BATCHES:
                case = f"{where.split('-')[1].upper()}, {network}, batch {batch}"
                rows += curve(case, where, inside, (network, batch), most)
    return rows


def curve(case, where, inside, trained, most):
    """Print the curve of a network and a batch by devices, and return its rows.

    Args:
        case: what results call it.
        where: a cluster.
        inside: its hosts, as settings of a topology.
        trained: a network, and the samples of a device.
        most: devices that there are.
    """
    network, batch = trained
    # Weak scaling: each device keeps its batch, so one alone is 100 % efficient.
    rows, alone = [], step(network, where, 1, batch)
    size = described(network, batch).profile.parameter_bytes
    for devices in (n for n in DEVICES if n <= most):
        found = step(network, where, devices, batch)
        rate = devices * batch / found.step_s
        # The server adds and answers when the step is computed: nothing overlaps.
        served = alone.step_s
        if devices > 1:
            served += server_seconds(size, devices, inside)
        server = devices * batch / served
        share = alone.step_s / found.step_s
        low, high = ratio_bounds(alone, found, share)
        print(
            f"{case}: {devices} devices {rate:,.0f} images/s, {share:.1%} "
            f"({low:.0%} to {high:.0%}); one server {server:,.0f}",
            flush=True,
        )
        rows.append(row(case, rate, "images/s", figure=f"{devices}"))
        if devices > 1:
            figure = f"one server, {devices}"
            rows.append(row(case, server, "images/s", figure=figure))
    figure, bounds = "efficiency at most devices", (100 * low, 100 * high)
    rows.append(predicted(case, 100 * share, "%", figure, bounds))
    # A batch that does not fit was not trained there in float32.
    rows.append(row(case, "yes" if found.fits else "no", "", figure="fits"))
    if measured := ONE_DEVICE.get((where, network, batch)):
        off = batch / alone.step_s / measured
        print(f"  one device measured: {measured}, predicted {off:.2f} of it")
        rows.append(row(case, off, "", figure="one device, predicted / measured"))
    return rows


def sums_of(case, reduction):
    """Return a step whose gradients are summed in two levels, four devices a host.

    The payloads are those of the algorithm along the parts of the data axis inside and
    across hosts, which no plan can name: it is priced here, and not run.
    """
    algorithm = make_algorithm(reduction)
    assert isinstance(algorithm, FlatAllReduce)
    (ledger,) = case.ledgers
    gone = [one for one in ledger.rows if one.layer.startswith("reduce_gradients")]
    # Payloads are bytes, of float32 gradients.
    elements = sum(one.payload for one in gone) // 4
    axes = {"data[::4]": case.plan.mesh.data // 4, "data[4]": 4}
    rows = [
        PlannedCollective(
            what="hierarchical",
            kind=each.kind,
            axes=each.axes,
            payload=each.payload_bytes,
            layer=f"{BUCKET_SCOPE}0",
            arrays=each.arrays,
        )
        for each in algorithm.vector_payloads(elements, 4, axes)
    ]
    kept = [one for one in ledger.rows if one not in gone]
    return replace(case, ledgers=(replace(ledger, rows=(*kept, *rows)),))


def exposed_s(found):
    """Return the seconds of a step that are neither computing nor the update."""
    own = found.terms_s["compute"] + found.terms_s.get("update", 0.0)
    return found.step_s - own


def sparse_512():
    """A step on 512 V100 of ABCI: dense, sparse, and sparse that knows the hosts."""
    rows = []
    for network, batch in (("resnet50", 32), ("vgg16", 32)):
        for overlap in (0.0, 0.5, 1.0):
            where = cluster_of("abci", overlap)
            plan = Plan(mesh=MeshShape(data=512), microbatches=1)
            dense = described(network, batch * 512).describe(plan)
            dense = without_statistics(dense)
            steps = {"dense": predict(dense, where)}
            for density in (0.01, 0.001):
                flat = ReductionConfig(algorithm="top_k", density=density)
                two = ReductionConfig(algorithm="hierarchical", density=density)
                steps |= {
                    f"sparse {density:g}": step(
                        network, "abci", 512, batch, overlap=overlap, reduce=flat
                    ),
                    f"sparse in two levels {density:g}": predict(
                        sums_of(dense, two), where
                    ),
                }
            before = exposed_s(steps["dense"])
            for name, found in steps.items():
                case = f"{network}, overlap {overlap:g}: {name}"
                ends = [1e3 * s for s in found.interval_s]
                moved = exposed_s(found)
                print(
                    f"{case}: {1e3 * found.step_s:.1f} ms ({ends[0]:.0f} to "
                    f"{ends[1]:.0f}), {1e3 * moved:.1f} ms of it communicate"
                    + f", {moved / before:.0%} of dense"
                    * (before > 1e-3)
                )
                rows += [
                    predicted(case, 1e3 * found.step_s, "ms", "step", ends),
                    row(case, 1e3 * moved, "ms", figure="exposed communication"),
                ]
    return rows


def shuffle_512():
    """An epoch on 512 workers: samples of the host, of other hosts, and of all."""
    workers, per_host, batch = 512, 4, 32
    found = step("resnet50", "abci", workers, batch)
    steps = SAMPLES / (workers * batch)
    whole = SAMPLES * SAMPLE_BYTES
    # What brings samples works beside the devices, so an epoch is as long as the
    # slowest of them.
    disk_s = whole / (workers / per_host) / DISK_B_S
    # As predicted, then the ends of the interval, each as seconds of an epoch.
    ends = [steps * one for one in (found.step_s, *found.interval_s)]
    local = [max(one, disk_s) for one in ends]
    rows = [predicted("local", local[0], "s", "epoch", local[1:])]
    print(
        f"local: {local[0]:.1f} s ({local[1]:.1f} to {local[2]:.1f}), {disk_s:.2f} disk"
    )
    for fraction in (0.1, 0.3, 0.9):
        # A host sends that part of its samples, and as many come; they are read from
        # the disk and written to it.
        moved_s = fraction * whole / (workers / per_host) / NIC_B_S
        disk = (1 + 2 * fraction) * disk_s
        took = [max(one, moved_s, disk) for one in ends]
        case = f"partial, {fraction:g} exchanged"
        rows.append(predicted(case, took[0], "s", "epoch", took[1:]))
        rows.append(row(case, took[0] / local[0], "", figure="of local"))
        print(f"{case}: {took[0]:.1f} s, {moved_s:.3f} s network, {disk:.2f} s disk")
    for rate in FILE_SYSTEM_B_S:
        took = [max(one, whole / rate) for one in ends]
        case = f"global, {rate / 1e9:g} GB/s file system"
        rows.append(predicted(case, took[0], "s", "epoch", took[1:]))
        rows.append(row(case, took[0] / local[0], "", figure="of local"))
        print(f"{case}: {took[0]:.1f} s, {took[0] / local[0]:.2f} of local")
    rate = whole / local[0]
    rows.append(row("global", rate / 1e9, "GB/s", figure="file system for as fast"))
    print(f"global is as fast from {rate / 1e9:.1f} GB/s on")
    return rows


DESCRIBED: dict[str, dict[str, Any]] = {
    "shuffle_512": {
        "title": "An epoch on 512 workers by shuffling",
        "measures": "Predicted seconds of an epoch of ResNet-50 on ImageNet, 512 V100 "
        "of ABCI, 32 samples each, with samples of the host (local), a part of them "
        "exchanged (partial), or all read from a shared file system (global), whose "
        "rate is what is varied. Ranges are the 90 % interval of the step. Samples are "
        "brought beside computing.",
        "goal": "partial as fast as local (printed: curves)",
        "notes": [
            "Nothing of the file system of that time is known here, so its rate is "
            "what is varied: global shuffling reads all samples in every epoch, and is "
            "as fast as local from the rate on that the last row has. A host's disk is "
            "taken at 3.2 GB/s and its network at 25 GB/s, by their data sheets.",
        ],
        "case_name": "shuffling",
    },
    "imagenet_hour": {
        "title": "ImageNet in one hour",
        "measures": "Predicted step of ResNet-50 with 32 images on each of 8 and 256 "
        "P100 (hosts of eight, 50 Gbit/s between them), by how much of the all-reduces "
        "overlaps with the backward pass. Ranges are 90 % intervals.",
        "goal": "about 90 % efficient from 8 to 256 (printed)",
        "notes": [
            "How much overlaps is not published: half is assumed, as of the other "
            "clusters of GPUs, none and all are the ends. Eight P100 of a DGX-1 with "
            "32 images each were measured at 1,485 images/s (TensorFlow, synthetic "
            "data, tensorflow.org/performance/benchmarks, May 2017), which is 172 ms.",
        ],
        "case_name": "overlap",
    },
    "horovod_scaling": {
        "title": "Images a second on clusters of K80 and P100",
        "measures": "Predicted images/s of one step by devices and images on each, "
        "with an all-reduce that overlaps by half, and with one parameter server, "
        "whose list is simulated (`jaxdist simulate`, EDR). Ranges of efficiency are "
        "90 % intervals. K80 counts half a board as a device.",
        "notes": [
            "One device was measured by others with TensorFlow and synthetic data "
            "(tensorflow.org/performance/benchmarks, May 2017; its P100 is an SXM2): "
            "the last column. Whether a batch fits is by the estimate of a step that "
            "was not traced.",
        ],
        "goal": "almost linear to 400 K80; AlexNet gains by the batch, the others do "
        "not; one server scales poorly (printed: curves)",
        "case_name": "devices, network",
    },
    "sparse_512": {
        "title": "Sparse sums that know hosts, with overlap, on 512 devices",
        "measures": "Predicted ms of a step on 512 V100 of ABCI, 32 images each: a "
        "dense all-reduce, top-k of a share of the numbers, and top-k between hosts "
        "behind an exact sum inside. Ranges are 90 % intervals. What choosing and "
        "adding entries computes is not in it: nobody measured it on V100.",
        "goal": "communication up to 60 % less (printed, of all methods)",
        "notes": [
            "Of 1 % of the numbers a gather among 512 devices carries about as much "
            "as the dense sum, or more: the sparse sum alone gains little, or loses. "
            "The sum in two levels is priced by its payloads along parts of the data "
            "axis, which no plan names: to run it takes a second axis inside hosts.",
        ],
        "case_name": "network, overlap, sum",
    },
}
"""What results call the tables."""

PARTS = {
    "shuffle_512": shuffle_512,
    "imagenet_hour": imagenet_hour,
    "horovod_scaling": horovod_scaling,
    "sparse_512": sparse_512,
}


def main():
    """Predict, print, and record where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    add_record_option(parser)
    args = parser.parse_args()
    for name in args.parts or PARTS:
        rows = PARTS[name]()
        if args.record:
            write_result(name, rows, not_run="minutes", **DESCRIBED[name])


if __name__ == "__main__":
    sys.exit(main())
