"""Tasks are values: equal ones are one, and jit takes one as a static argument."""

import dataclasses

import jax
import optax

from jaxdist.train.task import ModelSpec, Task


def make_task(**changes):
    spec = ModelSpec(maker="mine:network", settings={"width": 8})
    task = Task(
        model=spec, optimizer=optax.sgd(0.1), metrics={"top": lambda outputs, batch: 1}
    )
    return dataclasses.replace(task, **changes)


def test_a_task_is_a_static_argument():
    task = make_task()
    factor = jax.jit(lambda task, x: task.microbatches * x, static_argnums=0)
    assert factor(task, 3) == 3
    assert factor(dataclasses.replace(task, microbatches=2), 3) == 6
    assert factor._cache_size() == 2


def test_mappings_count_for_equality():
    task = make_task()
    assert task == dataclasses.replace(task)
    assert task != dataclasses.replace(task, metrics={})
    wider = dataclasses.replace(task.model, settings={"width": 16})
    assert task != dataclasses.replace(task, model=wider)
    other = dataclasses.replace(task, model=wider)
    assert len({task, dataclasses.replace(task), other}) == 2
