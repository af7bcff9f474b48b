"""Discs: a network, data and a training of one's own, in one file."""

import jax
import numpy as np
import optax
from flax import nnx

import jaxdist as jd


class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.layer = nnx.Linear(2, 64, rngs=rngs)
        self.head = nnx.Linear(64, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(jax.nn.relu(self.layer(x)))


def discs():
    point = np.random.default_rng(0).normal(size=(2048, 2)).astype(np.float32)
    label = (np.linalg.norm(point, axis=1) > 1.2).astype(np.int32)
    parts = slice(1792), slice(1792, None)
    return tuple({"image": point[part], "label": label[part]} for part in parts)


if __name__ == "__main__":
    data = jd.DataConfig(name=jd.object_reference(discs), batch=64)
    model = jd.ModelConfig(name=jd.object_reference(Net))
    experiment = jd.Experiment(name="discs", epochs=5, data=data, model=model)
    plan = jd.Plan(mesh=jd.MeshShape(data=4))
    run = jd.run(experiment, plan=plan, optimizer=optax.adam(1e-2))
    print(f"{run.accuracy:.1%} of the held-out points are right")
