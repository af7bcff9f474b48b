"""Classes of voxels on a 3-D U-Net, volumes of random balls."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def unet3d() -> Experiment:
    """Train a 3-D U-Net on volumes of balls in noise, with the class of each voxel.

    Source: Cicek et al. 2016, arXiv:1606.06650, section 3: one volume a step, cross
    entropy. There volumes are of kidneys with few slices labelled; here they are drawn
    (docs/volumes.md), the batch is 2 and the optimizer is AdamW.

    Expected time: not measured at full size, it takes accelerators.
    Expected score: none is published on these volumes.
    Command: jaxdist train unet3d model.size=tiny data.samples=32 epochs=2
    """
    return Experiment(
        name="unet3d",
        epochs=20,
        data=DataConfig(name="balls", batch=2),
        model=ModelConfig(name="unet3d"),
        optim=OptimConfig(name="adamw", lr=1e-3),
        plan=Plan(mesh=MeshShape(spatial_d=2, spatial_h=2)),
    )
