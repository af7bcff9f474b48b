"""How long a search for a plan takes: ordering by estimate, and describing in full.

python benchmarks/plans.py
"""

import time

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.described import Subject
from jaxdist.launch.plan.question import Question
from jaxdist.launch.resolve import resolve
from jaxdist.meshes.clusters.read import find
from jaxdist.oracle.predict import predict
from jaxdist.planner.shortlist import shortlist


def main():
    begun = time.perf_counter()
    resolved = resolve("resnet152", ("data.batch=32768",))
    subject = Subject(resolved.config)
    print(f"ResNet-152 read: {time.perf_counter() - begun:.1f} s")
    for mesh in (MeshShape(data=1024), MeshShape(data=512, spatial_h=2)):
        for again in ("first", "again", "again"):
            begun = time.perf_counter()
            made = predict(subject.case(Plan(mesh=mesh)), find("abci"))
            took = time.perf_counter() - begun
            print(f"{made.plan}, {again}: {took:.2f} s, step {made.step_s:.3f} s")
    for devices in (64, 256, 1024):
        order(subject, resolved, devices, ())
    order(subject, resolved, 1024, ("int8", "sparse"))


def order(subject, resolved, devices, lossy):
    """Print how long the plans of so many devices take to order."""
    question = Question(
        resolved=resolved, subject=subject, cluster=find("abci"), devices=devices
    )
    begun = time.perf_counter()
    coarse = question.coarse(lossy)
    listed = time.perf_counter() - begun
    begun = time.process_time()
    shortlist(coarse, 16e9)
    took = time.process_time() - begun
    print(
        f"{devices} devices: {len(coarse.space):,} plans listed in {listed:.2f} s "
        f"(what axes move described), ordered in {took:.2f} s, one core"
    )


if __name__ == "__main__":
    main()
