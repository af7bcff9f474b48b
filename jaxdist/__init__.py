"""jaxdist plans how to split a training, runs exactly that plan, and compares.

Public is what these modules export in `__all__`; everything else may change:

    jaxdist                          plans, training, checkpoints, inspection
    jaxdist.inspect                  a step or network of your own
    jaxdist.input                    data, orders, loaders and feeds
    jaxdist.input.local_shuffle      partial local shuffling between hosts
    jaxdist.models                   networks by name, and the parts of your own
    jaxdist.layers                   layers that see from the trace how they are split
    jaxdist.train                    tasks, objectives, optimizers, checkpoints
    jaxdist.collectives              sums over mesh axes, by algorithm and compressor
    jaxdist.collectives.algorithms   all-reduce algorithms as schedules of steps
    jaxdist.partition                block sizes of images that do not divide
    jaxdist.pipeline                 pipeline schedules as tables
    jaxdist.network                  collectives simulated on topologies
    jaxdist.planner.stages           PipeDream's partitioner
    jaxdist.calibrate                timings of this machine's links
    jaxdist.launch.config            experiments: every setting of a run
    jaxdist.launch.distributed       the processes of one run
    jaxdist.launch.launchers         processes of this machine
    jaxdist.launch.testbed           emulated hosts on shaped links
    jaxdist.launch.report            the report of a run

Their names are imported when they are first used: `import jaxdist` costs nothing.
"""

from typing import TYPE_CHECKING, Final

from jaxdist.core.lazy_names import lazy_names

__version__: Final = "0.1.0"

if TYPE_CHECKING:
    from jaxdist import inspect as inspect
    from jaxdist.core.cluster import Cluster as Cluster
    from jaxdist.core.object_reference import object_reference as object_reference
    from jaxdist.core.plan import MeshShape as MeshShape
    from jaxdist.core.plan import Plan as Plan
    from jaxdist.core.plan.outer import OuterConfig as OuterConfig
    from jaxdist.core.plan.pipeline import PipelineConfig as PipelineConfig
    from jaxdist.core.plan.reduction import ReductionConfig as ReductionConfig
    from jaxdist.core.profile import Profile as Profile
    from jaxdist.core.run_record import Run as Run
    from jaxdist.inspect import audit as audit
    from jaxdist.inspect import build_abstract_network as build_abstract_network
    from jaxdist.inspect import bytes_of as bytes_of
    from jaxdist.inspect import profile_network as profile_network
    from jaxdist.train.load import load as load
    from jaxdist.train.loop import fit as fit

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Cluster": "jaxdist.core.cluster",
        "MeshShape": "jaxdist.core.plan",
        "OuterConfig": "jaxdist.core.plan.outer",
        "PipelineConfig": "jaxdist.core.plan.pipeline",
        "Plan": "jaxdist.core.plan",
        "Profile": "jaxdist.core.profile",
        "ReductionConfig": "jaxdist.core.plan.reduction",
        "Run": "jaxdist.core.run_record",
        "audit": "jaxdist.inspect",
        "build_abstract_network": "jaxdist.inspect",
        "bytes_of": "jaxdist.inspect",
        "fit": "jaxdist.train.loop",
        "inspect": "jaxdist.inspect",
        "load": "jaxdist.train.load",
        "object_reference": "jaxdist.core.object_reference",
        "profile_network": "jaxdist.inspect",
    },
)
