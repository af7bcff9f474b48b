"""Branching vessels in volumes, segmented by a 3-D U-Net that two cores train."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def vessels() -> Experiment:
    """Segment trees of vessels in noise: which voxels lie in one.

    Source: Cicek et al. 2016, arXiv:1606.06650, a small network of its kind; the trees
    follow Murray 1926, doi:10.1073/pnas.12.3.207 (docs/volumes.md).

    Expected time: minutes on two cores.
    Expected score: a Dice of 0.9 of the vessels after four epochs of six.
    Command: jaxdist train vessels
    """
    return Experiment(
        name="vessels",
        epochs=6,
        data=DataConfig(
            name="vessels", batch=2, samples=64, size=24, augment=("flip", "rotate90")
        ),
        model=ModelConfig(name="unet3d", size="tiny", width=4, classes=2, channels=1),
        optim=OptimConfig(name="adamw", lr=1e-2),
        plan=Plan(mesh=MeshShape(data=2, spatial_d=2, spatial_h=2)),
    )
