"""ImageNet on Inception-v3, images of 299 x 299."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def inception_v3() -> Experiment:
    """Train Inception-v3 and its auxiliary head on 1.28 million images of ImageNet.

    Source: Szegedy et al. 2015, arXiv:1512.00567, section 8: 100 epochs, 50 replicas
    of batch 32, gradients clipped to 2.0. They used RMSProp at a rate of 0.045 that
    fell by 6 % every second epoch, and smoothed labels; here it is momentum at
    ResNet's rate for this batch, a cosine, and labels as they are.

    Expected time: not measured, it takes accelerators and the data.
    Expected score: 78.8 % top-1 (paper, one crop); not run here.
    Command: jaxdist train inception_v3
    """
    return Experiment(
        name="inception_v3",
        epochs=100,
        data=DataConfig(name="imagenet2012", batch=1600, shift=0, threads=4),
        model=ModelConfig(name="inception_v3", aux=True),
        optim=OptimConfig(lr=0.6, weight_decay=1e-4, warmup_epochs=5.0, clip=2.0),
        plan=Plan(mesh=MeshShape(data=8)),
    )
