"""A loop of one's own gets the batches of any order, on any devices, from any step."""

import jax
import numpy as np
import optax
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from flax import nnx
from jax.sharding import AxisType, Mesh

from jaxdist.core.errors import BadInput
from jaxdist.input import (
    ArrayRecordSource,
    ArraySource,
    Global,
    Keep,
    Local,
    Partial,
    loader,
    sampler,
)

SOURCE = ArraySource({"x": np.arange(50.0), "y": np.arange(50)})
ORDERS = [
    Global(),
    Local(partitions=4),
    Partial(exchange_fraction=0.3, partitions=4),
]


def mesh_of(data, model=1):
    devices = np.asarray(jax.devices()[: data * model]).reshape(data, model)
    return Mesh(devices, ("data", "model"))


def ids(steps, start=0, **how):
    with loader(SOURCE, global_batch=8, start=start, seed=3, **how) as batches:
        return [np.asarray(b["id"]) for b, _ in zip(batches, range(steps))]


@pytest.mark.parametrize("shuffle", [*ORDERS, None])
def test_batches_do_not_depend_on_devices(shuffle):
    one = ids(10, shuffle=shuffle)
    assert np.array_equal(one, ids(10, shuffle=shuffle, mesh=mesh_of(4, 2)))


@pytest.mark.parametrize("shuffle", [*ORDERS, None])
def test_a_loop_goes_on_where_it_stopped(shuffle):
    whole = ids(20, shuffle=shuffle)
    assert np.array_equal(whole[13:], ids(7, start=13, shuffle=shuffle))


@pytest.mark.parametrize("shuffle", ORDERS[1:])
def test_samples_that_are_kept_are_the_same(shuffle, tmp_path):
    whole = ids(20, shuffle=shuffle)
    assert np.array_equal(whole, ids(20, shuffle=shuffle, keep=Keep()))
    assert np.array_equal(
        whole,
        ids(20, shuffle=shuffle, keep=Keep(folder=tmp_path), threads=2),
    )
    assert np.array_equal(
        whole[13:],
        ids(7, start=13, shuffle=shuffle, keep=Keep(folder=tmp_path)),
    )


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_batches_do_not_depend_on_threads(threads):
    shuffle = Partial(exchange_fraction=0.5, partitions=8)
    one, other = (ids(15, shuffle=shuffle, threads=n) for n in (1, threads))
    assert np.array_equal(one, other)


def test_a_batch_has_what_the_source_has():
    with loader(SOURCE, global_batch=8, mesh=mesh_of(4)) as batches:
        batch = next(batches)
    assert set(batch) == {"x", "y", "id"}
    assert batch["x"].dtype == np.float32
    assert np.array_equal(batch["y"], batch["id"])
    assert batch["x"].sharding.shard_shape((8,)) == (2,)


def test_samples_are_split_over_the_axes_that_are_named():
    how = dict(global_batch=8, mesh=mesh_of(2, 4))
    for over, rows in {"model": 2, "data": 4, ("data", "model"): 1}.items():
        with loader(SOURCE, over=over, **how) as batches:
            assert next(batches)["x"].sharding.shard_shape((8,)) == (rows,)


@pytest.mark.parametrize("shuffle", ORDERS)
def test_ranks_of_a_sampler_share_the_loaders_batches(shuffle):
    given = ids(10, shuffle=shuffle)
    how = dict(global_batch=8, shuffle=shuffle, seed=3, world=2)
    ranks = [sampler(50, rank=rank, **how) for rank in (0, 1)]
    for step in range(10):
        both = [i for rank in ranks for i in rank.ids(step)]
        assert both == given[step].tolist()
    assert len(list(ranks[0])) == len(ranks[0]) == 7
    assert next(iter(ranks[0].advance(7))) == ranks[0].ids(7)


@pytest.fixture
def records(tmp_path):
    for part in range(2):
        writer = ArrayRecordWriter(
            str(tmp_path / f"{part}.array_record"), "group_size:1"
        )
        for i in range(5):
            writer.write(np.int64(5 * part + i).tobytes())
        writer.close()
    return sorted(tmp_path.glob("*.array_record"))


def whole(records):
    return {"x": np.frombuffer(b"".join(records), np.int64)}


def test_records_of_several_files_are_one_source(records):
    source = ArrayRecordSource(records, whole)
    assert len(source) == 10
    assert source.get(np.array([7, 0, 7]))["x"].tolist() == [7, 0, 7]
    assert source.fingerprint == ArrayRecordSource(records, whole).fingerprint
    assert source.fingerprint != ArrayRecordSource(records[:1], whole).fingerprint


def test_files_that_are_not_there_are_named(records):
    with pytest.raises(BadInput, match="no records") as caught:
        ArrayRecordSource([*records, "gone.array_record"], whole)
    assert caught.value.values == "gone.array_record"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (dict(global_batch=6, mesh=(4,)), "does not divide over the mesh"),
        (dict(global_batch=64), "smaller than a batch"),
        (dict(global_batch=8, over="batch"), "no axis batch"),
        (dict(global_batch=8, keep=Keep()), "of all hosts would be kept"),
        (
            dict(global_batch=8, shuffle=Partial(partitions=3)),
            "over the partitions",
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused(how, says):
    how |= {"mesh": mesh_of(*how["mesh"])} if "mesh" in how else {}
    with pytest.raises(BadInput, match=says):
        loader(SOURCE, **how)


def test_a_rank_that_is_none_is_refused():
    with pytest.raises(BadInput, match="over the ranks"):
        sampler(50, global_batch=8, rank=2, world=2)


def test_the_order_of_the_source_goes_round_and_has_a_state():
    assert [i.tolist() for i in ids(7, shuffle=None)][-1] == [48, 49, *range(6)]
    with loader(SOURCE, global_batch=8, shuffle=None) as batches:
        next(batches)
        saved = batches.state()
    assert (saved["order"], saved["step"]) == ("source", 1)
    with loader(SOURCE, global_batch=8, shuffle=None, start=saved) as batches:
        assert next(batches)["id"].tolist() == [*range(8, 16)]
    with pytest.raises(BadInput, match="another order"):
        loader(SOURCE, global_batch=8, start=saved)


def test_a_dict_of_arrays_is_a_source():
    with loader({"x": np.arange(50.0)}, global_batch=8, shuffle=None) as batches:
        assert next(batches)["x"].tolist() == [*range(8)]


def test_a_step_of_one_device_takes_batches_of_the_mesh_that_the_page_shows():
    """`jax.make_mesh` makes explicit axes, on which such a step has no gradient."""
    mesh = jax.make_mesh((4,), ("data",))
    assert mesh.axis_types == (AxisType.Explicit,)
    data = {"x": np.random.default_rng(0).random((40, 3), np.float32)}

    @nnx.jit
    def step(model, optimizer, batch):
        loss, grads = nnx.value_and_grad(lambda m: (m(batch["x"]) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    found = []
    for given in (mesh, None):
        model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        with loader(data, global_batch=8, mesh=given) as batches:
            found.append([step(model, optimizer, b) for _, b in zip(range(3), batches)])
    np.testing.assert_allclose(*found, rtol=1e-5)
    # Who has made the mesh that of now wants its axes in the types of arrays.
    with jax.set_mesh(mesh), loader(data, global_batch=8, mesh=mesh) as batches:
        assert next(batches)["x"].sharding.mesh == mesh
