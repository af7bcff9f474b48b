"""Characters of a large text, on the Llama of a billion parameters."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def llama() -> Experiment:
    """Train Llama 3.2 1B on the characters of a text of your own.

    Source: Touvron et al. 2023, arXiv:2302.13971, section 2.3 and table 2: windows of
    2,048 and 4 million tokens a step, rate 3e-4, AdamW with 0.9 and 0.95, decay 0.1,
    gradients clipped to 1.0. Tokens are characters here, not pieces of words.

    Expected time: not measured, it takes accelerators.
    Expected score: not known for characters; not run here.
    Command: jaxdist train llama data.path=input.txt    (or data.name=synthetic)
    """
    return Experiment(
        name="llama",
        epochs=1,
        data=DataConfig(name="text", batch=2048, context=2048, shift=0),
        model=ModelConfig(name="llama"),
        optim=OptimConfig(
            name="adamw",
            lr=3e-4,
            beta2=0.95,
            weight_decay=0.1,
            clip=1.0,
            warmup_epochs=0.01,
        ),
        plan=Plan(mesh=MeshShape(data=8)),
    )
