"""Rings and discs: a network and data of one's own, trained on data x spatial."""

import jax
import numpy as np
from flax import nnx

from jaxdist import MeshShape, Plan, object_reference
from jaxdist.input import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.layers import Conv, GlobalMean, Linear, MaxPool
from jaxdist.models import Chain, ModelConfig


class Stage(nnx.Module):
    def __init__(self, features, rngs):
        self.conv, self.pool = Conv(*features, (3, 3), rngs=rngs), MaxPool(2, 2)

    def __call__(self, x):
        return self.pool(jax.nn.relu(self.conv(x)))


class Net(Chain):
    def __init__(self, *, rngs):
        first, second = Stage((1, 8), rngs), Stage((8, 16), rngs)
        head = Linear(16, 2, rngs=rngs)
        super().__init__({"a": first, "b": second, "mean": GlobalMean(), "head": head})


def shapes():
    draw = np.random.default_rng(0)
    ring, radius = draw.integers(0, 2, 640), draw.uniform(3, 7, (640, 1, 1))
    outside = np.hypot(*np.ogrid[-7.5:8, -7.5:8]) - radius
    image = np.where(ring[:, None, None], abs(outside) < 1, outside < 0)[..., None]
    parts = slice(512), slice(512, None)
    return tuple({"image": image[part], "label": ring[part]} for part in parts)


def mine() -> Experiment:
    data = DataConfig(name=object_reference(shapes), batch=32)
    plan = Plan(mesh=MeshShape(data=2, spatial_h=2))
    model = ModelConfig(name=object_reference(Net))
    return Experiment(name="mine", epochs=4, data=data, model=model, plan=plan)
