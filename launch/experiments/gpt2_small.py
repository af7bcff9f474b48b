"""Characters of a large text, on GPT-2 small."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def gpt2_small() -> Experiment:
    """Train GPT-2 small on the characters of a text of your own.

    Source: Brown et al. 2020, arXiv:2005.14165, table 2.1 and appendix B, for 125
    million parameters: windows of 1,024 and half a million of them a step in tokens,
    rate 6e-4, AdamW with 0.9 and 0.95, decay 0.1, gradients clipped to 1.0. Tokens are
    characters here, not pieces of words.

    Expected time: not measured, it takes accelerators.
    Expected score: not known for characters; not run here.
    Command: jaxdist train gpt2_small data.path=input.txt    (or data.name=synthetic)
    """
    return Experiment(
        name="gpt2_small",
        epochs=1,
        data=DataConfig(name="text", batch=512, context=1024, shift=0),
        model=ModelConfig(name="gpt2_small"),
        optim=OptimConfig(
            name="adamw",
            lr=6e-4,
            beta2=0.95,
            weight_decay=0.1,
            clip=1.0,
            warmup_epochs=0.01,
        ),
        plan=Plan(mesh=MeshShape(data=8)),
    )
