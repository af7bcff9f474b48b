"""Articles of clothing, 28 x 28 pixels, on a small residual network."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def fashion_mnist() -> Experiment:
    """Train a small residual network on pictures of clothing, 10 classes.

    Source: H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST", 2017, arXiv:1708.07747:
    60,000 images, 10,000 held out: four IDX files in a folder of your own, packed or
    not, or `data.name=fashion_mnist` as TFDS prepares it.

    Expected time: a minute on 2 cores that do other work too, for the first 3,615 of
    the images; all of them take 16 times as long.
    Expected score: 82 to 83 % where only these are trained on; not run with all.
    Command: jaxdist train fashion_mnist data.path=FOLDER
    """
    return Experiment(
        name="fashion_mnist",
        epochs=8,
        data=DataConfig(name="arrays", batch=64, eval_batch=512, shift=1),
        model=ModelConfig(name="resnet8", width=8),
        optim=OptimConfig(lr=0.1, weight_decay=1e-4, warmup_epochs=1.0),
        plan=Plan(mesh=MeshShape(data=4)),
    )
