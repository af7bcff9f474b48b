"""ImageNet on VGG-16."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def vgg16() -> Experiment:
    """Train VGG-16 on the 1.28 million images of ImageNet.

    Source: Simonyan, Zisserman 2014, arXiv:1409.1556, section 3.1: batch 256, rate
    0.01, momentum 0.9, decay 5e-4, 74 epochs. The rate falls as a cosine here; there
    it was divided by 10 three times. Crops are of random area, not of scale 256.

    Expected time: not measured, it takes accelerators and the data.
    Expected score: 71.6 % top-1 (torchvision, 71.592); not run here.
    Command: jaxdist train vgg16
    """
    return Experiment(
        name="vgg16",
        epochs=74,
        data=DataConfig(name="imagenet2012", batch=256, shift=0, threads=4),
        model=ModelConfig(name="vgg16"),
        optim=OptimConfig(lr=0.01, weight_decay=5e-4, warmup_epochs=1.0, clip=5.0),
        plan=Plan(mesh=MeshShape(data=8)),
    )
