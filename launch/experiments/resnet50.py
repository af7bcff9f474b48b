"""ImageNet on ResNet-50."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def resnet50() -> Experiment:
    """Train ResNet-50 on the 1.28 million images of ImageNet.

    Source: Goyal et al. 2017, arXiv:1706.02677, section 5.1: 90 epochs, rate 0.1 for
    each 256 images of the batch, warm-up over 5 epochs, Nesterov momentum 0.9, decay
    1e-4 but none on norms. The rate falls as a cosine here, in steps there.

    Expected time: not measured, it takes accelerators and the data.
    Expected score: 76.4 % top-1 (their baseline); not run here.
    Command: jaxdist train resnet50 data.batch=1024 optim.lr=0.4
    """
    return Experiment(
        name="resnet50",
        epochs=90,
        data=DataConfig(name="imagenet2012", batch=256, shift=0, threads=4),
        model=ModelConfig(name="resnet50"),
        optim=OptimConfig(lr=0.1, weight_decay=1e-4, warmup_epochs=5.0),
        plan=Plan(mesh=MeshShape(data=8)),
    )
