"""ImageNet on AlexNet with one tower."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def alexnet() -> Experiment:
    """Train AlexNet, one tower, on the 1.28 million images of ImageNet.

    Source: Krizhevsky 2014, arXiv:1404.5997, with the settings of torchvision's
    reference (`references/classification`: 90 epochs, batch 8 x 32, rate 0.01, decay
    1e-4). The rate falls as a cosine here, in steps there.

    Expected time: not measured, it takes accelerators and the data.
    Expected score: 56.5 % top-1 (torchvision, 56.522); not run here.
    Command: jaxdist train alexnet
    """
    return Experiment(
        name="alexnet",
        epochs=90,
        data=DataConfig(name="imagenet2012", batch=256, shift=0, threads=4),
        model=ModelConfig(name="alexnet"),
        optim=OptimConfig(lr=0.01, weight_decay=1e-4, warmup_epochs=0.0),
        plan=Plan(mesh=MeshShape(data=8)),
    )
