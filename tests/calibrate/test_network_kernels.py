"""A network's own layers: which are timed, at which sizes, and that they are."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxdist.calibrate.kernels import (
    KernelCase,
    default_kernel_cases,
    network_kernel_cases,
    time_kernels,
)
from jaxdist.calibrate.measure_cluster import add_network_timings
from jaxdist.core.kernel_shape import KernelShape
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber as Described
from jaxdist.launch.training.job.abstract_step import list_layer_calls
from jaxdist.meshes.clusters.load import load_cluster

CONFIG = resolve_config("digits", ["data.batch=16"]).config


@pytest.fixture(scope="module")
def mesh():
    auto = (AxisType.Auto,)
    return jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=auto)


def test_layers_are_timed_at_the_sizes_that_plans_give_them():
    found = network_kernel_cases(list_layer_calls(CONFIG), (1, 4), 1e12)
    shapes = [subject.shape for subject in found]
    assert len(shapes) == len(set(shapes))
    head = KernelShape(kind="product", uses=16, inputs=64, outputs=10)
    assert head in shapes
    assert KernelShape(kind="product", uses=4, inputs=64, outputs=10) in shapes
    assert {s.taps for s in shapes if s.kind == "convolution"} == {1, 9}


def test_none_is_timed_that_takes_too_long():
    assert network_kernel_cases(list_layer_calls(CONFIG), (1,), 1.0) == ()


def test_they_are_the_kernels_that_the_oracle_asks_for():
    """Each layer of the profile is one of those that were listed, whole."""
    asked = {row.kernel for row in Described(CONFIG).profile.layers if row.kernel}
    listed = {
        subject.shape
        for subject in network_kernel_cases(list_layer_calls(CONFIG), (1,), 1e12)
    }

    def named(shapes):
        return sorted((s.kind, s.taps, s.inputs, s.outputs, s.uses) for s in shapes)

    for one, other in zip(named(asked), named(listed), strict=True):
        assert one[:-1] == other[:-1]
        assert one[-1] == pytest.approx(other[-1], rel=0.01)  # a bias is added


@pytest.mark.parametrize(
    "subject",
    [
        next(default_kernel_cases(1e9)),
        network_kernel_cases(list_layer_calls(CONFIG), (8,), 1e9)[0],
    ],
)
def test_both_passes_are_timed(mesh, subject):
    (kernel,) = time_kernels(mesh, [subject], "float32")
    assert kernel.shape == subject.shape
    assert 0 < kernel.forward_s < 1
    assert 0 < kernel.backward_s < 1


def test_calls_of_a_program_are_all_made(mesh):
    """Nothing is moved out of the loop: what a layer computes hangs on its call."""
    made = []

    def layer(w, x):
        jax.debug.callback(made.append, 0)
        return x @ w

    shape = KernelShape(kind="product", uses=1, inputs=1, outputs=1)
    subject = KernelCase(shape=shape, fn=layer, weights=(1, 1), inputs=(1, 1))
    time_kernels(mesh, [subject], "float32")
    assert len(made) > 2 * 300  # both devices, in the longer program alone


def test_layers_are_added_to_what_was_measured(mesh):
    subjects = network_kernel_cases(list_layer_calls(CONFIG), (16,), 1e9)[-1:]
    cluster = load_cluster("cpu-fake")
    machine = add_network_timings(
        cluster, mesh, subjects, dtype="float32", date="today"
    )
    assert cluster.device.kernels is None
    table = machine.cluster.device.kernels
    assert [k.shape for k in table.timed] == [s.shape for s in subjects]
    again = add_network_timings(
        machine.cluster, mesh, subjects, dtype="float32", date="later"
    ).cluster.device.kernels
    assert len(again.timed) == len(table.timed)
    assert again.origin.endswith("later")
    assert np.all([k.forward_s > 0 for k in again.timed])
