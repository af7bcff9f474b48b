"""The run that is harmed: a tiny network, on samples that note who reads them.

Each process writes the ids of every batch that it reads to a file of its own, in the
folder that FAULTS_READ names. The learning rate is constant, so that a run of any
length begins as a longer one.
"""

import json
import os
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from jaxdist.core.object_reference import object_reference
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.input.sources import ArraySource
from jaxdist.launch.config import CheckpointConfig, Experiment
from jaxdist.layers import Linear
from jaxdist.models.config import ModelConfig
from jaxdist.models.conv_blocks import Chain
from jaxdist.train.optimizers import OptimConfig

BATCH = 64
EPOCH = 100
"""Steps of an epoch."""
HIDDEN = 256


class Flat(nnx.Module):
    def __init__(self, inputs, rngs):
        self.dense = Linear(inputs, HIDDEN, rngs=rngs)

    def __call__(self, x):
        return jax.nn.relu(self.dense(x.reshape(len(x), -1)))


class Net(Chain):
    def __init__(self, *, rngs):
        super().__init__({"a": Flat(64, rngs), "b": Linear(HIDDEN, 10, rngs=rngs)})


class Noted(ArraySource):
    """Samples that note which of them are read, a line a batch."""

    def get(self, ids):
        folder = os.environ.get("FAULTS_READ", "")
        if folder and len(ids) > 1:  # a single one is read to see its shape
            name = f"{os.environ['JAXDIST_RANK']}-{os.getpid()}"
            with Path(folder, name).open("a") as file:
                file.write(json.dumps(ids.tolist()) + "\n")
        return super().get(ids)


def numbers():
    draw = np.random.default_rng(0)
    image = draw.normal(size=(BATCH * (EPOCH + 2), 8, 8, 1)).astype(np.float32)
    label = (image.reshape(len(image), -1) @ draw.normal(size=(64, 10))).argmax(1)
    parts = slice(BATCH * EPOCH), slice(BATCH * EPOCH, None)
    train, test = ({"image": image[part], "label": label[part]} for part in parts)
    return Noted(train), test


def harmed() -> Experiment:
    return Experiment(
        name="harmed",
        data=DataConfig(
            name=object_reference(numbers), batch=BATCH, shift=0, threads=1
        ),
        model=ModelConfig(name=object_reference(Net)),
        optim=OptimConfig(lr=0.02, warmup_epochs=0, milestones=(1_000_000,)),
        plan=Plan(mesh=MeshShape(data=2)),
        checkpoint=CheckpointConfig(every_steps=20),
    )
