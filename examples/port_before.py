"""A network that learns which points lie in a ball, and its training loop."""

import jax
import numpy as np
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.layer = nnx.Linear(3, 64, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.head = nnx.Linear(64, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(jax.nn.relu(self.norm(self.layer(x))))


@nnx.jit
def step(model, optimizer, batch):
    def loss_of(model):
        logits, labels = model(batch["point"]), batch["label"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


points = np.random.default_rng(0).uniform(-2, 2, (4096, 3)).astype(np.float32)
labels = (np.linalg.norm(points, axis=1) < 1.8).astype(np.int32)
data = {"point": points, "label": labels}

model = Net(rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
for number in range(64):
    batch = {key: values[64 * number :][:64] for key, values in data.items()}
    loss = step(model, optimizer, batch)
    print(f"step {number + 1:2}  loss {float(loss):.7f}")
