"""jaxdist plans how to split a training, runs exactly that plan, and compares.

Public is what these modules export in `__all__`; everything else may change:

    jaxdist                          experiments, runs, plans, steps of your own
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
from jaxdist.core.version import VERSION

__version__: Final = VERSION

if TYPE_CHECKING:
    from jaxdist import inspect as inspect
    from jaxdist.core.block_protocol import LogitsLayer as LogitsLayer
    from jaxdist.core.cluster import Cluster as Cluster
    from jaxdist.core.errors import BadInput as BadInput
    from jaxdist.core.object_reference import object_reference as object_reference
    from jaxdist.core.plan import MeshShape as MeshShape
    from jaxdist.core.plan import Plan as Plan
    from jaxdist.core.plan.outer import OuterConfig as OuterConfig
    from jaxdist.core.plan.pipeline import PipelineConfig as PipelineConfig
    from jaxdist.core.plan.reduction import ReductionConfig as ReductionConfig
    from jaxdist.core.profile import Profile as Profile
    from jaxdist.core.run_record import Run as Run
    from jaxdist.input.config import DataConfig as DataConfig
    from jaxdist.input.data_loader import loader as loader
    from jaxdist.inspect import audit as audit
    from jaxdist.inspect import build_abstract_network as build_abstract_network
    from jaxdist.inspect import bytes_of as bytes_of
    from jaxdist.inspect import profile_network as profile_network
    from jaxdist.launch.api.experiment_run import plan_for as plan_for
    from jaxdist.launch.api.experiment_run import run as run
    from jaxdist.launch.config.experiment import CheckpointConfig as CheckpointConfig
    from jaxdist.launch.config.experiment import Experiment as Experiment
    from jaxdist.launch.config.experiment import RunConfig as RunConfig
    from jaxdist.launch.distributed.jax_processes import initialize as initialize
    from jaxdist.launch.tracking.tracker import TrackedEnd as TrackedEnd
    from jaxdist.launch.tracking.tracker import TrackedRun as TrackedRun
    from jaxdist.launch.tracking.tracker import Tracker as Tracker
    from jaxdist.layers import AvgPool as AvgPool
    from jaxdist.layers import BatchNorm as BatchNorm
    from jaxdist.layers import Conv as Conv
    from jaxdist.layers import ConvTranspose as ConvTranspose
    from jaxdist.layers import Dropout as Dropout
    from jaxdist.layers import GlobalMean as GlobalMean
    from jaxdist.layers import GroupNorm as GroupNorm
    from jaxdist.layers import InstanceNorm as InstanceNorm
    from jaxdist.layers import Linear as Linear
    from jaxdist.layers import MaxPool as MaxPool
    from jaxdist.layers import PixelShuffle as PixelShuffle
    from jaxdist.layers import PixelUnshuffle as PixelUnshuffle
    from jaxdist.layers import Upsample as Upsample
    from jaxdist.models.config import ModelConfig as ModelConfig
    from jaxdist.models.conv_blocks import Chain as Chain
    from jaxdist.train.callbacks import Callback as Callback
    from jaxdist.train.callbacks import RunStart as RunStart
    from jaxdist.train.distributed_step import DistributedStep as DistributedStep
    from jaxdist.train.distributed_step import distribute as distribute
    from jaxdist.train.field_regression import FieldRegression as FieldRegression
    from jaxdist.train.load import load as load
    from jaxdist.train.loop import fit as fit
    from jaxdist.train.objective import Classification as Classification
    from jaxdist.train.objective import FunctionObjective as FunctionObjective
    from jaxdist.train.objective import NextToken as NextToken
    from jaxdist.train.objective import Objective as Objective
    from jaxdist.train.objective import Regression as Regression
    from jaxdist.train.optimizers import OptimConfig as OptimConfig
    from jaxdist.train.segmentation import Segmentation as Segmentation
    from jaxdist.train.sharded_norms import clip_by_global_norm as clip_by_global_norm

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "AvgPool": "jaxdist.layers",
        "BadInput": "jaxdist.core.errors",
        "BatchNorm": "jaxdist.layers",
        "Callback": "jaxdist.train.callbacks",
        "Chain": "jaxdist.models.conv_blocks",
        "CheckpointConfig": "jaxdist.launch.config.experiment",
        "Classification": "jaxdist.train.objective",
        "Cluster": "jaxdist.core.cluster",
        "Conv": "jaxdist.layers",
        "ConvTranspose": "jaxdist.layers",
        "DataConfig": "jaxdist.input.config",
        "DistributedStep": "jaxdist.train.distributed_step",
        "Dropout": "jaxdist.layers",
        "Experiment": "jaxdist.launch.config.experiment",
        "FieldRegression": "jaxdist.train.field_regression",
        "FunctionObjective": "jaxdist.train.objective",
        "GlobalMean": "jaxdist.layers",
        "GroupNorm": "jaxdist.layers",
        "InstanceNorm": "jaxdist.layers",
        "Linear": "jaxdist.layers",
        "LogitsLayer": "jaxdist.core.block_protocol",
        "MaxPool": "jaxdist.layers",
        "MeshShape": "jaxdist.core.plan",
        "ModelConfig": "jaxdist.models.config",
        "NextToken": "jaxdist.train.objective",
        "Objective": "jaxdist.train.objective",
        "OptimConfig": "jaxdist.train.optimizers",
        "OuterConfig": "jaxdist.core.plan.outer",
        "PipelineConfig": "jaxdist.core.plan.pipeline",
        "PixelShuffle": "jaxdist.layers",
        "PixelUnshuffle": "jaxdist.layers",
        "Plan": "jaxdist.core.plan",
        "Profile": "jaxdist.core.profile",
        "ReductionConfig": "jaxdist.core.plan.reduction",
        "Regression": "jaxdist.train.objective",
        "Run": "jaxdist.core.run_record",
        "RunConfig": "jaxdist.launch.config.experiment",
        "RunStart": "jaxdist.train.callbacks",
        "Segmentation": "jaxdist.train.segmentation",
        "TrackedEnd": "jaxdist.launch.tracking.tracker",
        "TrackedRun": "jaxdist.launch.tracking.tracker",
        "Tracker": "jaxdist.launch.tracking.tracker",
        "Upsample": "jaxdist.layers",
        "audit": "jaxdist.inspect",
        "build_abstract_network": "jaxdist.inspect",
        "bytes_of": "jaxdist.inspect",
        "clip_by_global_norm": "jaxdist.train.sharded_norms",
        "distribute": "jaxdist.train.distributed_step",
        "fit": "jaxdist.train.loop",
        "initialize": "jaxdist.launch.distributed.jax_processes",
        "inspect": "jaxdist.inspect",
        "load": "jaxdist.train.load",
        "loader": "jaxdist.input.data_loader",
        "object_reference": "jaxdist.core.object_reference",
        "plan_for": "jaxdist.launch.api.experiment_run",
        "profile_network": "jaxdist.inspect",
        "run": "jaxdist.launch.api.experiment_run",
    },
)
