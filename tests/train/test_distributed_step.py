"""A step of one device on all devices is the step of the whole batch."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxdist
from jaxdist import distribute
from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.train.sharded_norms import clip_by_global_norm

BATCH = 32


class Net(nnx.Module):
    def __init__(self, rngs, dropout=0.0):
        self.first, self.norm = (
            nnx.Linear(8, 64, rngs=rngs),
            nnx.BatchNorm(64, rngs=rngs),
        )
        self.drop = nnx.Dropout(dropout, rngs=rngs)
        self.second, self.head = (
            nnx.Linear(64, 64, rngs=rngs),
            nnx.Linear(64, 3, rngs=rngs),
        )
        self.seen = nnx.Variable(jnp.zeros((), jnp.int32))
        self.mean = nnx.Variable(jnp.zeros(8))

    def __call__(self, x):
        self.seen[...] += 1
        self.mean[...] = x.mean(0)
        x = self.drop(jax.nn.relu(self.norm(self.first(x))))
        return self.head(jax.nn.relu(self.second(x)))


def step(model, optimizer, batch):
    def loss_of(model):
        logits, labels = model(batch["x"]), batch["y"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), (losses, logits.argmax(-1) == labels)

    (loss, (losses, right)), grads = nnx.value_and_grad(loss_of, has_aux=True)(model)
    optimizer.update(model, grads)
    return {"loss": loss, "losses": losses, "right": right.sum()}


def batches(count):
    draw = np.random.default_rng(0)
    for _ in range(count):
        x = draw.normal(size=(BATCH, 8)).astype(np.float32)
        yield {"x": x, "y": (x[:, 0] > 0).astype(np.int32) + (x[:, 1] > 0)}


def trained(call, tx=None, steps=6, **settings):
    model = Net(nnx.Rngs(0), **settings)
    # Adam would make the signs of rounding errors count: the gradient of a bias before a
    # batch norm is zero.
    optimizer = nnx.Optimizer(model, tx or optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    with jax.numpy_dtype_promotion("standard"):
        found = [call(model, optimizer, batch) for batch in batches(steps)]
    return found, model


def mesh(**sizes):
    devices = jax.devices()[: int(np.prod([*sizes.values()]))]
    return jax.sharding.Mesh(np.reshape(devices, [*sizes.values()]), tuple(sizes))


@pytest.fixture(scope="module")
def alone():
    return trained(nnx.jit(step))


@pytest.mark.parametrize(
    "sizes", [{"data": 1}, {"data": 4}, {"fsdp": 4}, {"data": 2, "fsdp": 4}], ids=str
)
@pytest.mark.parametrize("jitted", [False, True])
def test_a_step_is_that_of_the_whole_batch(alone, sizes, jitted):
    body = nnx.jit(step) if jitted else step
    found, model = trained(distribute(body, mesh=mesh(**sizes)))
    for one, other in zip(alone[0], found, strict=True):
        np.testing.assert_allclose(other["loss"], one["loss"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(other["losses"], one["losses"], rtol=1e-4, atol=1e-5)
        assert int(other["right"]) == int(one["right"])
    for one, other in zip(
        *map(jax.tree.leaves, (nnx.state(alone[1]), nnx.state(model)))
    ):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-5)
    assert int(model.seen[...]) == 6


def test_fsdp_keeps_parameters_and_optimizer_state_in_shards():
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    sharded = distribute(step, mesh=mesh(fsdp=4))
    with jax.numpy_dtype_promotion("standard"):
        sharded(model, optimizer, next(batches(1)))
    for name, leaf in jax.tree.leaves_with_path(nnx.state((model, optimizer))):
        whole = leaf.size // leaf.addressable_shards[0].data.size
        key = jax.tree_util.keystr(name)
        is_weight = "kernel" in key
        assert whole == (4 if is_weight and leaf.ndim > 1 else whole), key
        if "mean" in key or "seen" in key or "count" in key:
            assert whole == 1, key


@pytest.mark.parametrize("compressor", ["bf16", "int8", "power", "top_k", "ring"])
def test_compressed_gradients_are_one_argument(alone, compressor):
    config = ReductionConfig(algorithm=compressor, density=0.1)
    given = config if compressor == "top_k" else compressor
    found, _ = trained(distribute(step, mesh=mesh(data=4), compressor=given))
    losses = [float(one["loss"]) for one in found]
    exact = [float(one["loss"]) for one in alone[0]]
    assert losses[0] == pytest.approx(exact[0], rel=1e-5)
    assert losses[-1] == pytest.approx(
        exact[-1], rel=1e-5 if compressor == "ring" else 0.3
    )
    assert (losses == exact) is False


def test_a_loop_does_not_resume_from_the_address_of_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = distribute(step, mesh=mesh(data=4))
    with pytest.raises(BadInput, match="is no folder"):
        loop.resume("gs://bucket/run", steps=6)
    assert not list(tmp_path.iterdir())


def test_error_feedback_is_in_checkpoints(tmp_path):
    def begun(folder):
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        loop = distribute(step, mesh=mesh(data=4), compressor="int8")
        left = loop.resume(folder, model, optimizer, steps=6, interval=3)
        return loop, left, model, optimizer

    with jax.numpy_dtype_promotion("standard"):
        loop, left, *nodes = begun(tmp_path / "a")
        whole = [float(loop(*nodes, b)["loss"]) for _, b in zip(left, batches(6))]
        loop, left, *nodes = begun(tmp_path / "b")
        for _, batch in zip(range(3), batches(6)):
            loop(*nodes, batch)
        loop.close()
        loop, left, *nodes = begun(tmp_path / "b")
        assert list(left) == [3, 4, 5]
        rest = [float(loop(*nodes, b)["loss"]) for b in [*batches(6)][3:]]
        # Not looped over to the end: the last checkpoint may still be written.
        loop.close()
        with pytest.warns(JaxdistWarning, match="at step 6 of 6: nothing is left"):
            _, left, *_ = begun(tmp_path / "b")
    assert rest == whole[3:]
    assert list(left) == []


def test_noise_differs_between_devices_and_streams_count_alike():
    model = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    net = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.sgd(0.0), wrt=nnx.Param)

    @distribute(mesh=mesh(data=4))
    def dropped(model, net, optimizer, batch):
        return model(batch)

    before = model.rngs.key[...]
    rows = np.asarray(dropped(model, net, optimizer, np.ones((4, 64), np.float32)))
    assert len({row.tobytes() for row in rows}) == 4
    assert (
        jax.random.key_data(model.rngs.key[...]) == jax.random.key_data(before)
    ).all()
    again = np.asarray(dropped(model, net, optimizer, np.ones((4, 64), np.float32)))
    assert (rows != again).any()


def test_modes_and_new_layers_are_seen(alone):
    calls = distribute(step, mesh=mesh(data=4))
    model = Net(nnx.Rngs(0), dropout=0.5)
    optimizer = nnx.Optimizer(model, optax.sgd(0.0), wrt=nnx.Param)
    one = next(batches(1))
    with jax.numpy_dtype_promotion("standard"):
        first, second = (float(calls(model, optimizer, one)["loss"]) for _ in range(2))
        assert first != second
        model.eval()
        first, second = (float(calls(model, optimizer, one)["loss"]) for _ in range(2))
        assert first == second
        model.train()
        assert float(calls(model, optimizer, one)["loss"]) != second


def test_optimizers_that_look_at_whole_parameters_are_refused_over_fsdp():
    clipped = optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(0.1))
    with pytest.raises(BadInput, match="cannot move shards"):
        trained(distribute(step, mesh=mesh(fsdp=4)), clipped, 1)
    one, _ = trained(nnx.jit(step), clipped)
    ours = optax.chain(clip_by_global_norm(1e-3), optax.sgd(0.1))
    for sizes in ({"fsdp": 4}, {"data": 2, "fsdp": 2}):
        found, _ = trained(distribute(step, mesh=mesh(**sizes)), ours)
        for a, b in zip(one, found, strict=True):
            np.testing.assert_allclose(b["loss"], a["loss"], rtol=1e-5)
    found, _ = trained(distribute(step, mesh=mesh(data=4)), clipped)
    np.testing.assert_allclose(found[-1]["loss"], one[-1]["loss"], rtol=1e-5)


def test_the_audit_sees_sums_alone():
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    with jax.numpy_dtype_promotion("standard"):
        report = jaxdist.audit(
            distribute(step, mesh=mesh(data=4)), model, optimizer, next(batches(1))
        )
    assert {move.kind for move in report.moves} == {"all-reduce"}
    assert not report.findings


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: distribute(step, compressor="int9"), "int8"),
        (lambda: distribute(step, axis="tensor"), "tensor"),
        (lambda: distribute(step, mesh=mesh(pipe=2)), "pipe"),
        (lambda: distribute(step)(1), "step\\(model, optimizer, batch\\)"),
        (
            lambda: distribute(step, compressor=ReductionConfig(warmup_steps=3)),
            "warmup_steps",
        ),
        (
            lambda: trained(distribute(step, mesh=mesh(data=3)), steps=1),
            "batches of 33",
        ),
    ],
)
def test_what_is_wrong_is_said(make, said):
    with warnings.catch_warnings(), pytest.raises(BadInput, match=said):
        make()


def test_an_array_as_long_as_the_batch_of_a_device_is_averaged():
    """Three numbers a class, of devices with three samples each."""
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.0), wrt=nnx.Param)
    x = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)

    def scores(model, optimizer, batch):
        y = model(batch)
        return {"class": y.mean(0), "sample": y.sum(-1)}

    def fixed(model, optimizer, batch):
        assert batch.shape == (3, 2)
        return scores(model, optimizer, batch)

    want = scores(model, optimizer, x)
    found = distribute(scores, mesh=mesh(data=4))(model, optimizer, x)
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
    # A step of one batch size is judged by its lengths.
    found = distribute(fixed, mesh=mesh(data=4))(model, optimizer, x)
    assert found["class"].shape == (12,)
    np.testing.assert_allclose(found["sample"], want["sample"], rtol=1e-5)
