"""Regression of fields: losses and errors are those of their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.train.count_words import words_total
from jaxdist.train.field_regression import FieldRegression

RNG = np.random.default_rng(0)
WEIGHTS = (0.5, 2.0)


@pytest.fixture(params=[(7,), (4, 6), (2, 4, 3)], ids=["line", "image", "volume"])
def fields(request):
    """Predictions and targets of four samples of two channels.

    Some numbers are missing; of the third sample all are, of the last those of one
    channel, and its other channel is zero.
    """
    found, target = RNG.normal(size=(2, 4, *request.param, 2))
    target[RNG.random(target.shape) < 0.2] = np.nan
    target[2] = np.nan
    target[3, ..., 0], target[3, ..., 1] = np.nan, 0
    return found, target


def errors_of(kind, found, target):
    """The error of each channel of one sample, NaN where it has none."""
    errors = []
    for field, true in zip(found.reshape(-1, 2).T, target.reshape(-1, 2).T):
        t = true[~np.isnan(true)]
        e = field[~np.isnan(true)] - t
        if kind == "relative_l2":
            scale = np.sqrt((t**2).sum())
            errors.append(np.sqrt((e**2).sum()) / scale if scale else np.nan)
        elif not len(e):
            errors.append(np.nan)
        else:
            errors.append(np.mean(abs(e) if kind == "l1" else e**2))
    return np.array(errors)


@pytest.mark.parametrize("kind", ["l1", "l2", "relative_l2"])
def test_losses_are_those_of_the_formulas(kind, fields):
    objective = FieldRegression(loss=kind, channel_weights=WEIGHTS)
    want = []
    for sample in zip(*fields):
        errors, weights = errors_of(kind, *sample), np.array(WEIGHTS)
        has = ~np.isnan(errors)
        want.append((errors[has] * weights[has]).sum() / max(weights[has].sum(), 0.1))
    with jax.enable_x64(True):
        found, target = map(jnp.asarray, fields)
        batch = {"target": target}
        losses = objective.losses(found, batch)
        gradient = jax.grad(lambda x: objective.losses(x, batch).sum())(found)
        exact = jax.grad(lambda x: objective.losses(x, batch).sum())(
            jnp.nan_to_num(target)
        )
    np.testing.assert_allclose(losses, want, rtol=1e-12)
    assert np.isfinite(gradient).all()
    assert np.isfinite(exact).all()
    assert not np.asarray(gradient)[np.isnan(fields[1])].any()
    assert np.asarray(gradient)[0][~np.isnan(fields[1][0])].all()


def test_errors_are_those_of_all_samples(fields):
    found, target = fields
    real = np.array([True, True, True, False])
    # What is not finite for the padding must not count.
    found[3] = np.inf
    sums = FieldRegression().answer_sums(
        *(jnp.asarray(found), {"target": jnp.asarray(target)}), jnp.asarray(real)
    )
    scores = FieldRegression().scores(
        {
            "channel_sums": np.asarray(sums["channel_sums"], np.float64),
            "channel_counts": words_total(sums["channel_counts"]),
        }
    )
    for c in range(2):
        error = (found - target)[:3, ..., c]
        error = error[~np.isnan(error)]
        assert scores[f"mae_{c}"] == pytest.approx(abs(error).mean(), rel=1e-5)
        root = np.sqrt((error**2).mean())
        assert scores[f"rmse_{c}"] == pytest.approx(root, rel=1e-5)
    each = [errors_of("relative_l2", found[i], target[i]) for i in range(3)]
    want = np.nanmean(each, 0)
    assert scores["relative_l2_0"] == pytest.approx(want[0], rel=1e-5)
    assert scores["relative_l2"] == pytest.approx(want.mean(), rel=1e-5)
    assert tuple(scores)[:3] == FieldRegression().score_names


def test_a_channel_without_targets_has_no_error():
    sums = {"channel_sums": np.array([[2.0, 0], [8, 0], [1, 0]])}
    scores = FieldRegression().scores(
        {**sums, "channel_counts": np.array([[2, 0], [4, 0]])}
    )
    assert scores == {
        **{"mae": 1, "rmse": 2, "relative_l2": 0.25},
        **{"mae_0": 1, "rmse_0": 2, "relative_l2_0": 0.25},
    }


def test_predictions_of_narrow_dtypes_are_scored_in_float32():
    batch = {"target": jnp.ones((2, 4, 4, 1))}
    losses = FieldRegression(loss="l1").losses(
        jnp.zeros((2, 4, 4, 1), jnp.bfloat16), batch
    )
    assert losses.dtype == jnp.float32
    assert losses.tolist() == [1, 1]


def shapes(**sizes):
    return {key: jax.ShapeDtypeStruct(size, "float32") for key, size in sizes.items()}


@pytest.mark.parametrize(
    ("image", "target", "outputs"),
    [
        ((2, 8, 8, 1), (2, 8, 8, 2), (2, 8, 8, 1)),
        ((2, 8, 8, 1), (2, 8, 8), (2, 8, 8, 1)),
        ((2, 8, 8, 1), (2, 8, 4, 1), (2, 8, 4, 1)),
        ((2, 8, 8, 1), (2, 8, 8, 1), (2, 1)),
    ],
)
def test_other_sizes_are_refused(image, target, outputs):
    with pytest.raises(BadInput, match="different sizes") as refused:
        FieldRegression().check_outputs(
            shapes(x=outputs)["x"], shapes(image=image, target=target)
        )
    assert str(list(outputs[1:])) in refused.value.values


@pytest.mark.parametrize("weights", [(1.0,), (1.0, -1.0), (0.0, 0.0)])
def test_weights_are_of_the_channels(weights):
    with pytest.raises(BadInput, match="weight"):
        FieldRegression(channel_weights=weights).check_outputs(
            shapes(x=(2, 8, 8, 2))["x"], shapes(image=(2, 8, 8, 1), target=(2, 8, 8, 2))
        )


def test_a_split_that_ends_before_the_targets_is_refused():
    plan = Plan(mesh=MeshShape(spatial_h=2), spatial_end="head")
    batch = shapes(image=(2, 8, 8, 1), target=(2, 8, 8, 1))
    with pytest.raises(BadInput, match="targets are cut") as refused:
        FieldRegression().on_blocks(plan, batch)
    assert "plan.spatial_end = head" in refused.value.values
