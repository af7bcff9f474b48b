"""Characters of a large text, on a mixture of experts."""

from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def mixtral() -> Experiment:
    """Train Mixtral 8x7B on the characters of a text of your own.

    Source: Jiang et al. 2024, arXiv:2401.04088, for the network. Its training is not
    published; these are windows, rate and AdamW of Touvron et al. 2023,
    arXiv:2302.13971, table 2. Tokens are characters here, not pieces of words.

    Expected time: not measured, it takes accelerators.
    Expected score: not known for characters; not run here.
    Command: jaxdist train mixtral data.path=input.txt    (or data.name=synthetic)
    """
    return Experiment(
        name="mixtral",
        epochs=1,
        data=DataConfig(name="text", batch=2048, context=2048, shift=0),
        model=ModelConfig(name="mixtral", tied_head=False),
        optim=OptimConfig(
            name="adamw",
            lr=3e-4,
            beta2=0.95,
            weight_decay=0.1,
            clip=1.0,
            warmup_epochs=0.01,
        ),
    )
