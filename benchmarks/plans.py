"""How long a search for a layout takes: ordering by estimate, and describing in full.

python benchmarks/plans.py
"""

import time
from dataclasses import replace

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.described import Subject
from jaxdist.launch.resolve import resolve
from jaxdist.meshes.clusters.read import find
from jaxdist.oracle.predict import predict
from jaxdist.planner.coarse import estimate, totals
from jaxdist.planner.layouts import layouts


def main():
    cluster = find("abci")
    words = ("plan.mesh.data=1", "plan.mesh.spatial_h=1", "data.batch=32768")
    begun = time.perf_counter()
    subject = Subject(resolve("resnet152", words).config)
    print(f"ResNet-152 read: {time.perf_counter() - begun:.1f} s")
    network = totals(subject.profile)
    plans = [plan for n in (256, 512, 1024, 2048, 4096) for plan in layouts(Plan(), n)]
    begun = time.process_time()
    for plan in plans:
        estimate(network, plan, cluster, 1, subject.dtype)
    each = (time.process_time() - begun) / len(plans)
    print(f"{len(plans):,} layouts ordered: {1e6 * each:.0f} us each, one core")
    for mesh in (MeshShape(data=1024), MeshShape(data=512, spatial_h=2)):
        for again in ("first", "again"):
            begun = time.perf_counter()
            made = predict(subject.case(replace(Plan(), mesh=mesh)), cluster)
            took = time.perf_counter() - begun
            print(f"{made.plan}, {again}: {took:.2f} s, step {made.step_s:.3f} s")


if __name__ == "__main__":
    main()
