"""ImageNet on the AlexNet of 2012, in two groups."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def alexnet_two_group() -> Experiment:
    """Train the two-group AlexNet on the 1.28 million images of ImageNet.

    Source: Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional
    Neural Networks", section 5: batch 128, rate 0.01, momentum 0.9, decay 5e-4, about
    90 epochs. The rate falls as a cosine here; there it was divided by 10 three times
    by hand. Their change of colours (PCA) is left out.

    Expected time: not measured, it takes accelerators and the data.
    Expected score: 59 % top-1 (paper, mean of ten crops); not run here.
    Command: jaxdist train alexnet_two_group
    """
    return Experiment(
        name="alexnet_two_group",
        epochs=90,
        data=DataConfig(name="imagenet2012", batch=128, shift=0, threads=4),
        model=ModelConfig(name="alexnet_two_group"),
        optim=OptimConfig(lr=0.01, weight_decay=5e-4, warmup_epochs=0.0),
        plan=Plan(mesh=MeshShape(data=8)),
    )
