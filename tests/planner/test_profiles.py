"""Profiles of both kinds: what is read, and what is refused, with the node's name."""

import json

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.profile import BlockProfile, LayerProfile, Profile
from jaxdist.planner.stages.graph_from_profile import (
    constant_rate_model,
    graph_from_profile,
    parse_profile,
)
from jaxdist.planner.stages.pipedream_file import parse_pipedream_profile

LINE = (
    "node{n} -- {label} -- forward_compute_time={f}, backward_compute_time={b}, "
    "activation_size={a}, parameter_size={p}"
)


def line(n, label="Conv2d(3, 64, kernel_size=(3, 3))", f=1.0, b=2.0, a=8.0, p=4.0):
    return LINE.format(n=n, label=label, f=f, b=b, a=a, p=p)


def file(*lines, edges=()):
    return "\n".join([*lines, *(f"\tnode{a} -- node{b}" for a, b in edges)])


CHAIN = file(line(1), line(2), line(3), edges=[(1, 2), (2, 3)])


def test_times_are_milliseconds_and_sizes_bytes():
    (node, *_) = parse_pipedream_profile(CHAIN, "g").nodes
    assert (node.forward, node.backward) == (0.001, 0.002)
    assert (node.output, node.parameters, node.kept) == (8, 4, 8)


def test_a_tuple_of_outputs_adds_up():
    text = file(line(1, a="[6.0; 1.0; 2.0]"), line(2), edges=[(1, 2)])
    assert parse_pipedream_profile(text, "g").nodes[0].output == 9


@pytest.mark.parametrize(
    ("label", "kept"),
    [("ReLU(inplace)", 0), ("ReLU(inplace=True)", 0), ("ReLU(inplace=False)", 8)],
)
def test_what_is_done_in_place_is_kept_once(label, kept):
    assert parse_pipedream_profile(file(line(1, label)), "g").nodes[0].kept == kept


def test_inputs_are_left_out_and_other_sources_are_not():
    text = file(
        line(1, "Input0", f=9),
        line(2, "hidden", f=0, b=0, a=0, p=0),
        line(3, "MyInput"),
        line(10, "InputMixer(8)"),
        line(9),
        edges=[(1, 10), (2, 9), (10, 9)],
    )
    graph = parse_pipedream_profile(text, "g")
    assert [n.name for n in graph.nodes] == ["node2", "node3", "node10", "node9"]
    order = [graph.nodes[i].name for i in graph.order]
    assert order == ["node2", "node3", "node10", "node9"]


def test_lines_may_be_in_any_order_and_end_anyhow():
    turned = "\r\n".join(["", *reversed(CHAIN.splitlines()), "  "])
    with_stages = CHAIN.replace(
        "parameter_size=4.0", "parameter_size=4.0 -- stage_id=3"
    )
    without_text = CHAIN.replace("Conv2d(3, 64, kernel_size=(3, 3)) -- ", "")
    for text in (turned, with_stages, without_text, "\ufeff" + CHAIN):
        graph = parse_pipedream_profile(text, "g")
        assert [graph.nodes[i].name for i in graph.order] == ["node1", "node2", "node3"]
        assert graph.is_chain


def test_the_least_number_comes_first():
    text = file(line(10), line(9), line(2), edges=[(10, 2)])
    graph = parse_pipedream_profile(text, "g")
    assert [graph.nodes[i].name for i in graph.order] == ["node9", "node10", "node2"]


@pytest.mark.parametrize(
    ("text", "names", "says"),
    [
        (file(line(1), line(2), edges=[(1, 2), (2, 1)]), "node1", "cycle"),
        (file(line(1), line(2), edges=[(1, 2), (2, 2)]), "node2", "cycle"),
        (
            file(
                line(1), *map(line, (2, 3, 4)), edges=[(1, 2), (2, 3), (3, 4), (4, 3)]
            ),
            "node3",
            "-> node4",
        ),
        (file(line(1), line(1)), "node1", "two nodes"),
        (file(line(1), line(2), edges=[(1, 3)]), "node3", "did you mean"),
        (
            file(line(1).replace("activation_size=8.0, ", "")),
            "node1",
            "activation_size",
        ),
        (
            file(line(1).replace("activation_size", "activaton_size")),
            "node1",
            "activaton",
        ),
        (file(line(1), line(2, p="many")), "node2", "parameter_size=many"),
        (file(line(1), line(2, a="[1; ]")), "node2", "activation_size"),
        (file(line(1), line(2, f="nan")), "node2", "forward"),
        (file(line(1), line(2, a=-8)), "node2", "output"),
        (file(line(1, f=0, b=0, p=0)), "node1", "takes no time"),
        (file(line(1, f=0, b=0), line(2, f=0, b=0)), "node1", "1 more like it"),
        (file(line(1, "View(-1)", f=0, b=0, p=0)), "node1", "takes no time"),
        (file(line(1), "node2"), "line 2", "neither"),
        ("", "g", "no node"),
        (file(line(1, "Input")), "g", "no node"),
    ],
)
def test_a_bad_file_is_refused_by_name(text, names, says):
    with pytest.raises(BadInput) as refused:
        parse_pipedream_profile(text, "g")
    assert names in str(refused.value)
    assert says in str(refused.value)


def test_layers_faster_than_a_file_has_digits_for_are_taken_and_named():
    small = [line(n, "ReLU(inplace)", f=0, b=0, p=0) for n in range(2, 7)]
    text = file(line(1), *small, line(7, "View(-1)", f=0, b=0, p=0))
    graph = parse_pipedream_profile(text, "g")
    assert [node.seconds for node in graph.nodes] == pytest.approx([0.003, *[0] * 6])
    # A view is no work, and nobody has to be told.
    assert graph.origin == "measured; 0 s for node2, node3, node4 and 2 more layers"
    weights = parse_pipedream_profile(file(line(1), line(2, f=0, b=0)), "g")
    assert weights.origin == "measured; 0 s for node2"
    assert parse_pipedream_profile(CHAIN, "g").origin == "measured"


BLOCKS = tuple(
    BlockProfile(
        name=name,
        kind="Block",
        block=name,
        parameter_bytes=4,
        flops_forward=100,
        flops_backward=200,
        output_bytes=8,
        cut_after=name != "stem",
    )
    for name in ("stem", "body", "head")
)
LAYERS = tuple(
    LayerProfile(name=f"{b.name}.{i}", kind="Conv", block=b.name, output_bytes=8)
    for b in BLOCKS
    for i in range(2)
)


def profile(blocks=BLOCKS, layers=LAYERS, note=""):
    return Profile(
        model="net",
        inputs=("float32[8,4]",),
        batch=8,
        layers=layers,
        blocks=blocks,
        note=note,
    )


def test_blocks_without_seconds_do_their_flops_at_a_rate():
    graph = graph_from_profile(
        parse_profile(profile().to_json(), "p"), "p", constant_rate_model(100.0)
    )
    assert [(n.forward, n.backward) for n in graph.nodes] == [(1.0, 2.0)] * 3
    assert [n.kept for n in graph.nodes] == [16] * 3
    assert [n.cut_after for n in graph.nodes] == [False, True, True]
    assert graph.origin == "FLOPs at 100 FLOP/s"
    with pytest.raises(BadInput, match="stem was not measured"):
        graph_from_profile(profile(), "p")


def test_measured_seconds_come_first_of_the_block_or_of_its_layers():
    from dataclasses import replace

    blocks = (
        replace(BLOCKS[0], seconds_forward=5.0, seconds_backward=6.0),
        *BLOCKS[1:],
    )
    layers = tuple(
        replace(row, seconds_forward=1.5, seconds_backward=2.5)
        if row.block == "body"
        else row
        for row in LAYERS
    )
    graph = graph_from_profile(profile(blocks, layers), "p", constant_rate_model(100.0))
    times = [(n.forward, n.backward) for n in graph.nodes]
    assert times == [(5.0, 6.0), (3.0, 5.0), (1.0, 2.0)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b.pop("output_bytes"), "body has no output_bytes"),
        (lambda b: b.update(output_bytes=None), "body has no number for output_bytes"),
        (lambda b: b.update(parameter_bytes=-1), "body has no parameters of -1"),
        (lambda b: b.update(seconds_forward=0.0, seconds_backward=0), "takes no time"),
        (lambda b: b.update(seconds_forward="fast"), "no number for seconds_forward"),
        (lambda b: b.update(outputs=3), "is no profile"),
        (lambda b: b.update(name="stem"), "two nodes stem"),
    ],
)
def test_a_bad_block_is_refused_by_name(change, says):
    tree = profile().tree()
    change(tree["blocks"][1])
    with pytest.raises(BadInput, match=says):
        graph_from_profile(
            parse_profile(json.dumps(tree), "p"), "p", constant_rate_model(1.0)
        )


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"blocks": 3}', '{"blocks": [1]}'])
def test_what_is_no_profile_is_said_to_be_none(text):
    with pytest.raises(BadInput, match="is no profile"):
        parse_profile(text, "p")


@pytest.mark.parametrize("source", ["cluster.json", "graph.txt", "resnet50.json"])
def test_no_remedy_writes_to_the_file_that_was_refused(source):
    for read in (parse_profile, parse_pipedream_profile):
        with pytest.raises(BadInput) as refused:
            read("{}" if read is parse_profile else "", source)
        (remedy,) = refused.value.remedy
        assert remedy.startswith("jaxdist profile resnet50 -o ")
        assert not remedy.endswith(f" {source}")


def test_a_network_that_is_no_chain_is_refused_with_its_reason():
    with pytest.raises(BadInput, match="none: it branches"):
        graph_from_profile(
            profile(blocks=(), note="none: it branches"), "p", constant_rate_model(1.0)
        )
