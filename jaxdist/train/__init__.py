"""Training: layouts, steps, the loop and checkpoints of a plan."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.train.callbacks import Callback as Callback
    from jaxdist.train.checkpoint.checkpoints import Checkpoints as Checkpoints
    from jaxdist.train.objective import Captioning as Captioning
    from jaxdist.train.objective import Classification as Classification
    from jaxdist.train.objective import FunctionObjective as FunctionObjective
    from jaxdist.train.objective import NextToken as NextToken
    from jaxdist.train.objective import Objective as Objective
    from jaxdist.train.objective import PackedNextToken as PackedNextToken
    from jaxdist.train.objective import Regression as Regression
    from jaxdist.train.optimizers import OptimConfig as OptimConfig
    from jaxdist.train.sharded_norms import clip_by_global_norm as clip_by_global_norm
    from jaxdist.train.state import TrainState as TrainState
    from jaxdist.train.task import Task as Task

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Callback": "jaxdist.train.callbacks",
        "Captioning": "jaxdist.train.objective",
        "Checkpoints": "jaxdist.train.checkpoint.checkpoints",
        "Classification": "jaxdist.train.objective",
        "FunctionObjective": "jaxdist.train.objective",
        "NextToken": "jaxdist.train.objective",
        "Objective": "jaxdist.train.objective",
        "OptimConfig": "jaxdist.train.optimizers",
        "PackedNextToken": "jaxdist.train.objective",
        "Regression": "jaxdist.train.objective",
        "Task": "jaxdist.train.task",
        "TrainState": "jaxdist.train.state",
        "clip_by_global_norm": "jaxdist.train.sharded_norms",
    },
)
