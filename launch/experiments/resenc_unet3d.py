"""Classes of voxels on the residual U-Net of nnU-Net, volumes of random balls."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def resenc_unet3d() -> Experiment:
    """Train nnU-Net's residual encoder U-Net on volumes of balls in noise.

    Source: Isensee et al. 2024, arXiv:2404.09556, and its planner ResEnc L: batches of
    two cubes, cross entropy and soft Dice, Nesterov momentum 0.99, rate 0.01. There
    cubes are cut out of scans and augmented, and rates fall as a polynomial; here they
    are drawn (docs/volumes.md), and the rate falls as a cosine.

    Expected time: not measured at full size, it takes accelerators.
    Expected score: none is published on these volumes.
    Command: jaxdist train resenc_unet3d model.size=tiny data.samples=32 epochs=2
    """
    return Experiment(
        name="resenc_unet3d",
        epochs=20,
        data=DataConfig(name="balls", batch=2),
        model=ModelConfig(name="resenc_unet3d", loss="dice_cross_entropy"),
        optim=OptimConfig(lr=0.01, momentum=0.99, weight_decay=3e-5),
        plan=Plan(mesh=MeshShape(spatial_d=2, spatial_h=2)),
    )
