"""Characters of a text file, each told from those before it, on a small Transformer."""

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig


def characters() -> Experiment:
    """Train a small Transformer on the characters of a text of your own.

    Source: any text in UTF-8; the last tenth of it is held out. The numbers below are
    of the 1.1 million characters of Shakespeare that A. Karpathy collected for
    char-rnn, 2015.

    Expected time: 18 minutes on 2 cores that did other work too, 2 fake devices.
    Expected score: a held-out loss of about 1.66 nats a character, 1.75 at most.
    Command: jaxdist train characters data.path=input.txt
    """
    return Experiment(
        name="characters",
        epochs=1,
        data=DataConfig(name="text", batch=16, context=128, stride=64, shift=0),
        model=ModelConfig(
            name="llama", depth=4, heads=4, kv_heads=4, embed=128, hidden=384
        ),
        optim=OptimConfig(
            name="adamw",
            lr=3e-3,
            beta2=0.99,
            weight_decay=0.1,
            clip=1.0,
            warmup_epochs=0.1,
        ),
        plan=Plan(mesh=MeshShape(data=2)),
    )
