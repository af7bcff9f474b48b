"""ImageNet on GoogLeNet."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def googlenet() -> Experiment:
    """Train GoogLeNet with its auxiliary heads on the 1.28 million images of ImageNet.

    Source: Szegedy et al. 2014, arXiv:1409.4842, sections 5 and 6: auxiliary losses
    of weight 0.3, momentum 0.9, random crops. Batch, rate and length are not in the
    paper; those of ResNet are taken, since this form has batch norm as well.

    Expected time: not measured, it takes accelerators and the data.
    Expected score: 69.8 % top-1 (torchvision, 69.778, ported weights); not run here.
    Command: jaxdist train googlenet
    """
    return Experiment(
        name="googlenet",
        epochs=90,
        data=DataConfig(name="imagenet2012", batch=256, shift=0, threads=4),
        model=ModelConfig(name="googlenet", aux=True),
        optim=OptimConfig(lr=0.1, weight_decay=1e-4, warmup_epochs=5.0),
        plan=Plan(mesh=MeshShape(data=8)),
    )
