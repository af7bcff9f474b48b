"""ImageNet on ConvNeXt-T."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def convnext_t() -> Experiment:
    """Train ConvNeXt-T on the 1.28 million images of ImageNet.

    Source: Liu et al. 2022, arXiv:2201.03545, table 5: 300 epochs of batches of 4,096,
    AdamW with rate 4e-3 and decay 0.05, warm-up over 20 epochs, cosine, an average of
    the weights. Mixup, random erasing, label smoothing and stochastic depth are not
    here.

    Expected time: not measured, it takes accelerators and the data.
    Expected score: 82.1 % top-1 with all of the paper's augmentation; not run here.
    Command: jaxdist train convnext_t data.batch=4096
    """
    return Experiment(
        name="convnext_t",
        epochs=300,
        data=DataConfig(name="imagenet2012", batch=4096, shift=0, threads=4),
        model=ModelConfig(name="convnext_t"),
        optim=OptimConfig(
            name="adamw", lr=4e-3, weight_decay=0.05, warmup_epochs=20.0, ema=0.9999
        ),
        plan=Plan(mesh=MeshShape(data=8)),
    )
