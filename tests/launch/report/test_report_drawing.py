"""Axes, bars and curves place what they are given."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.launch.report.charts import (
    AxisMark,
    BarSegment,
    Curve,
    XAxis,
    YAxis,
    draw_line_chart,
    log_ticks,
    make_bar_chart,
    stacked_bar,
    tag,
    ticks,
)
from jaxdist.launch.report.learning_curves import downsample

numbers = st.floats(1e-6, 1e9, allow_nan=False)


@given(numbers)
def test_ticks_begin_at_zero_and_hold_the_largest_value(high):
    found = ticks(0.0, high)
    assert found[0] == 0
    assert found[-1] >= high * (1 - 1e-9)
    assert 2 <= len(found) <= 8


@given(numbers)
def test_ticks_stand_at_round_numbers(high):
    step = ticks(0.0, high)[1]
    mantissa = float(f"{step:e}".split("e")[0])
    assert mantissa == pytest.approx(
        min((1, 2, 2.5, 5, 10), key=lambda m: abs(m - mantissa))
    )


@given(st.floats(-1e3, 1e3), numbers)
def test_ticks_surround_values_that_do_not_begin_at_zero(low, span):
    found = ticks(low, low + span)
    slack = 1e-6 * (abs(low) + span)
    assert found[0] <= low + slack
    assert found[-1] >= low + span - slack


@given(st.floats(1e-9, 1e9), st.floats(1, 1e12))
def test_ticks_of_a_logarithmic_axis_surround_the_values(low, times):
    found = log_ticks(low, low * times)
    assert found[0] <= low
    assert found[-1] >= low * times * (1 - 1e-9)
    assert found == sorted(set(found))
    assert 2 <= len(found) <= 9


def test_equal_factors_are_equal_heights_of_a_logarithmic_axis():
    y = YAxis(title="y", ticks=[0.01, 0.1, 1.0, 10.0], is_log=True)
    shares = [y.share(value) for value in (0.001, 0.01, 0.1, 1, 10, 100)]
    assert shares == pytest.approx([1, 1, 2 / 3, 1 / 3, 0, 0])


def test_epochs_stand_at_their_steps():
    x = XAxis(title="step", ticks=[0.0, 100.0], end=110.0, epoch=22.5)
    assert x.epochs == [0, 1, 2, 3, 4]
    drawn = draw([(0, 0), (100, 2)], end=110.0, epoch=22.5)
    assert f'x="{100 * 4 * 22.5 / 110:.3f}%" y="233" text-anchor="middle">4<' in drawn
    assert XAxis(title="step", ticks=[0.0, 10.0], epoch=22.5).epochs == []


@pytest.mark.parametrize(
    ("values", "offered", "preferred"),
    [
        ([1, 9], False, False),
        ([0, 99], False, False),
        ([1, 10], True, False),
        ([1, 100], True, True),
    ],
)
def test_a_logarithmic_axis_is_offered_where_there_are_decades(
    values, offered, preferred
):
    curve = Curve(stroke="backward", points=list(enumerate(values)), label="end")
    y = YAxis(title="y", ticks=[0.0, 100.0])
    x = XAxis(title="x", ticks=[0.0, 1.0])
    figure = draw_line_chart("t", [curve], x, y, offers_log=True)
    assert (figure.log_svg is not None, figure.prefers_log) == (offered, preferred)


def test_bars_on_one_axis_have_lengths_in_proportion():
    marks = [
        BarSegment(fill="data", size=size, title="a", label="b")
        for size in (5000, 1250)
    ]
    rows = make_bar_chart(marks, [(1e3, "k")], "sizes").rows
    widths = [re.search(r'width="([\d.]+)%" height="16"', row.svg)[1] for row in rows]
    assert [float(width) for width in widths] == [100, 25]


def test_parts_of_a_whole_fill_the_bar():
    parts = [BarSegment(fill="data", size=s, title="t", label="") for s in (3, 1)]
    drawn = stacked_bar("all", parts)
    assert re.findall(r'x="([\d.]+)%" y="1" width="([\d.]+)%"', drawn) == [
        ("0", "75"),
        ("75", "25"),
    ]


def draw(points, **more):
    curve = Curve(stroke="backward", points=points, label="end")
    x = XAxis(title="x", ticks=[0, 10], **more)
    return draw_line_chart("t", [curve], x, YAxis(title="y", ticks=[0, 2])).svg


def test_a_curve_runs_from_left_to_right_and_upwards():
    assert 'points="0.00,100.00 100.00,0.00"' in draw([(0, 0), (10, 2)])


def test_a_single_point_is_a_dot():
    assert '<circle class="t-backward" cx="50%" cy="50%"' in draw([(5, 1)])


def test_the_colour_of_a_mark_is_left_to_the_style_sheet():
    drawn = draw([(0, 0), (10, 2)], marks=[AxisMark(place=4, label="resume 1")])
    assert not re.search(r'#[0-9a-fA-F]{3,6}|style=|fill="|stroke="', drawn)


def test_an_element_escapes_its_text_and_its_attributes():
    written = tag("text", 'a<b>&"', aria_label='"><script>')
    assert (
        written
        == '<text aria-label="&#34;&gt;&lt;script&gt;">a&lt;b&gt;&amp;&#34;</text>'
    )


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=2000))
def test_thinning_keeps_the_last_step_and_a_few_hundred_points(values):
    curve = [(float(step), y) for step, y in enumerate(values)]
    thinned = downsample(curve, max)
    assert thinned[-1][0] == curve[-1][0]
    assert len(thinned) <= 300
    assert max(y for _, y in thinned) == max(values)
