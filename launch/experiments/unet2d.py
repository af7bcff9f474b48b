"""Classes of pixels on a U-Net, images of random discs."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def unet2d() -> Experiment:
    """Train a U-Net on images of discs in noise, with the class of each pixel.

    Source: Ronneberger et al. 2015, arXiv:1505.04597, section 3: batches of one image,
    momentum 0.99, cross entropy. There images are of cells, rotated and deformed; here
    they are drawn (docs/volumes.md), the batch is 8 and the optimizer is AdamW.

    Expected time: not measured at full size, it takes accelerators.
    Expected score: none is published on these images; the tiny network has a mean
    Dice of 0.92 after 640 steps (docs/volumes.md).
    Command: jaxdist train unet2d model.size=tiny data.samples=512 optim.lr=0.01
    """
    return Experiment(
        name="unet2d",
        epochs=20,
        data=DataConfig(name="balls", batch=8),
        model=ModelConfig(name="unet2d"),
        optim=OptimConfig(name="adamw", lr=1e-3),
        plan=Plan(mesh=MeshShape(data=2, spatial_h=2)),
    )
