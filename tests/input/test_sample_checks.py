"""What a batch may hold: finite floats, and integers that index what they are for."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.input.batch_assembly import EvalBatchAssembler
from jaxdist.input.sample_validation import SampleSpec, cast_checked
from jaxdist.input.sources import ArraySource

numbers = st.lists(
    st.one_of(st.integers(-200, 200), st.integers(-(2**63), 2**63 - 1)),
    min_size=1,
    max_size=12,
)


@given(numbers, st.integers(1, 150), st.sampled_from([None, -100, -1]))
def test_integers_are_an_index_or_refused_with_the_sample(values, bound, ignored):
    spec = SampleSpec(
        upper_bounds={"label": bound},
        ignore_values={} if ignored is None else {"label": ignored},
    )
    ids = np.arange(len(values)) + 50
    wrong = [i for i, n in enumerate(values) if not 0 <= n < bound and n != ignored]
    array = np.array(values, np.int64)
    if wrong:
        with pytest.raises(BadInput, match=f"sample {50 + wrong[0]} ") as caught:
            cast_checked("label", array, "int32", ids, spec, False)
        assert caught.value.rule
        assert str(values[wrong[0]]) in caught.value.values
        assert caught.value.remedy
    else:
        cast = cast_checked("label", array, "int32", ids, spec, False)
        assert (cast.dtype, cast.tolist()) == (np.int32, values)


@given(numbers)
def test_what_a_device_would_cut_is_refused(values):
    array, ids = np.array(values, np.int64), np.arange(len(values))
    fits = all(-(2**31) <= n < 2**31 for n in values)
    try:
        cast = cast_checked("x", array, "int32", ids, SampleSpec(), False)
    except BadInput:
        assert not fits
    else:
        assert cast.tolist() == values


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf])
def test_a_label_that_is_no_whole_number_is_refused(value):
    with pytest.raises(BadInput, match="label of sample 1 is no whole number"):
        cast_checked(
            "label", np.array([1, value]), "int32", np.arange(2), SampleSpec(), False
        )


def test_whole_floats_are_labels():
    cast = cast_checked(
        "label", np.array([1.0, 2.0]), "int32", np.arange(2), SampleSpec(), False
    )
    assert cast.tolist() == [1, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_floats_that_are_not_finite_in_a_batch_are_named(value):
    x = np.zeros((8, 3))
    x[5, 1] = value
    spec = SampleSpec(dtypes={"x": "float32"}, floats="all")
    read = EvalBatchAssembler(
        source=ArraySource({"x": x}), batch=4, dtypes=spec.dtypes, checks=spec
    )
    assert read(0, np.arange(4))["x"].shape == (4, 3)
    with pytest.raises(BadInput, match="sample 5 is not finite"):
        read(1, np.arange(4))
    open_spec = replace(spec, ignore_values={"x": math.nan})
    read = EvalBatchAssembler(
        source=ArraySource({"x": x}), batch=4, dtypes=spec.dtypes, checks=open_spec
    )
    if np.isnan(value):
        assert np.isnan(read(1, np.arange(4))["x"]).sum() == 1
        return
    with pytest.raises(BadInput, match="sample 5 is not finite"):
        read(1, np.arange(4))
