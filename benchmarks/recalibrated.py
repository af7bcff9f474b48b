"""One recalibration: the error of a cluster file that is wrong, before it and after.

    python benchmarks/recalibrated.py found --models digits,vgg16

Reads what `executed.py calibrate` and `executed.py run` left: calibrations of four
hosts of a testbed, and what the steps of many plans took on them. Each cluster file is
spoiled by known factors: devices three times as fast, links half as fast, and the other
way round. Two runs, of different kinds, are the ones that `jaxdist compare
--recalibrate` is given; every other run of the network at that rate is predicted before
and after.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import median

from executed import MODELS, laid, pooled

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.run_record import Run
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.compare import compare_prediction, recalibrate_cluster
from jaxdist.oracle.predict import predict
from jaxdist.oracle.step_description import StepDescription

GIVEN = "data", "tensor"
"""Plans of the runs that are given: one mostly computes, one mostly talks."""
SPOILS = {"devices x 3, links / 2": (3.0, 0.5), "devices / 3, links x 4": (1 / 3, 4.0)}


def spoiled(cluster: Cluster, devices, links):
    """Return the cluster with devices and links as many times as fast."""

    def times(number: SourcedNumber, factor):
        return SourcedNumber(number.value * factor, "given: wrong on purpose")

    device = replace(
        cluster.device,
        flops={k: times(rate, devices) for k, rate in cluster.device.flops.items()},
        memory_bandwidth=times(cluster.device.memory_bandwidth, devices),
        launch=times(cluster.device.launch, 1 / devices),
    )
    levels = tuple(
        replace(
            level,
            alpha=times(level.alpha, 1 / links),
            bandwidth=times(level.bandwidth, links),
        )
        for level in cluster.levels
    )
    return replace(cluster, device=device, levels=levels)


class Seen:
    """A plan that was run, described once and predicted on any cluster."""

    def __init__(self, name, times, case: StepDescription):
        self.name, self.case, took = name, case, median(times)
        self.run = Run(name=name, experiment=name, step_s=took, steps=1)

    def beside(self, cluster: Cluster):
        return compare_prediction(self.run, predict(self.case, cluster))

    def error(self, cluster: Cluster):
        return abs(predict(self.case, cluster).step_s / self.run.step_s - 1)


def executed(folder: Path, model):
    """Yield what ran of a network, a rate at a time."""
    found = json.loads((folder / f"{model}.executed.json").read_text())
    plans = laid(model, found["plans"])
    name, *words = MODELS[model]
    subject = StepDescriber(resolve_config(name, words).config)
    for rate, seconds in found["seconds"].items():
        times = pooled(seconds, plans)
        yield rate, [Seen(n, times[n], subject.describe(plans[n])) for n in plans]


def scored(seen: list[Seen], right: Cluster, factors):
    """Return the median error as calibrated, spoiled, and recalibrated."""
    wrong = spoiled(right, *factors)
    given = [one for one in seen if one.name in GIVEN]
    others = [one for one in seen if one.name not in GIVEN]
    better = recalibrate_cluster(wrong, [one.beside(wrong) for one in given])
    return [median(one.error(on) for one in others) for on in (right, wrong, better)]


def rows(folder, models):
    """Yield a row for each network, rate and way of being wrong."""
    for model in models:
        for rate, seen in executed(folder, model):
            right = load_cluster(str(folder / f"{rate}.json"))
            for how, factors in SPOILS.items():
                calibrated, before, after = scored(seen, right, factors)
                yield {
                    **{"model": model, "rate": rate, "spoiled": how},
                    **{"calibrated": calibrated, "before": before, "after": after},
                }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default="digits,vgg16")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = list(rows(args.folder, args.models.split(",")))
    if args.json:
        print(json.dumps(found, indent=2))
        return
    print("| network | links | spoiled | as calibrated | before | after |")
    print("|---|---|---|---|---|---|")
    for row in found:
        errors = (f"{row[k]:.0%}" for k in ("calibrated", "before", "after"))
        told = (row["model"], row["rate"], row["spoiled"], *errors)
        print(f"| {' | '.join(told)} |")
    ratios = [row["after"] / row["before"] for row in found]
    print(f"\nafter / before: median {median(ratios):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
