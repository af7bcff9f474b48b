"""The recipe for large batches: settings that change together, as one setting.

Goyal et al. 2017, arXiv:1706.02677: the rate grows with the batch (section 2.1), after
a gradual warm-up over five epochs (2.2), and residual blocks begin as their shortcut
(5.1). That norms and biases do not decay, the fourth part, holds for every run.
"""

from typing import Any, Final

from jaxdist.launch.config.experiment import Experiment
from jaxdist.models.registry import ends_blocks_in_norm

WARMUP_EPOCHS: Final = 5.0


def recipe_overrides(config: Experiment) -> dict[str, Any]:
    """Return the keys that a configuration's recipe sets; none without a recipe.

    >>> recipe_overrides(Experiment(name="mine"))
    {}
    >>> list(recipe_overrides(Experiment(name="mine", recipe="large_batch")))
    ['optim.scaling', 'optim.warmup_epochs', 'model.zero_gamma']
    """
    if config.recipe == "none":
        return {}
    zero = {"model.zero_gamma": True} if ends_blocks_in_norm(config.model) else {}
    return {"optim.scaling": "linear", "optim.warmup_epochs": WARMUP_EPOCHS, **zero}
