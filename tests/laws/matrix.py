"""The law matrix: every network, every split alone and in hybrids, and what is covered.

A cell is a network, a layout and what the tensor axis splits there. The whole matrix is
the product; the cover takes of its hybrids every pair of axes with every network, and
every pair of network and strategy and of strategy and hybrid at least once.

Networks are in their tiny form; resnet152's is resnet50's, so it has no cells. Those of
test_convnext_and_resenc.py have their own, since depthwise layers split no channels.
"""

import itertools
from dataclasses import dataclass

from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_names, takes_tokens

STRATEGIES = ("pairs", "filter", "channel")
"""What the tensor axis can do."""

SINGLE = {
    "data 4": dict(data=4),
    "fsdp 4": dict(fsdp=4),
    "fsdp 2, zero 1": dict(fsdp=2, zero=1),
}
SINGLE_SPATIAL = {
    "spatial_h 2": dict(spatial_h=2),
    "spatial_w 2": dict(spatial_w=2),
}
SINGLE_WEIGHTS = {"tensor 2": dict(tensor=2)}

HYBRID = {"data 2 x fsdp 2": dict(data=2, fsdp=2)}
HYBRID_SPATIAL = {
    "data 2 x spatial_h 2 x spatial_w 2": dict(data=2, spatial_h=2, spatial_w=2),
    "fsdp 2 x spatial_h 2 x idle 2": dict(
        fsdp=2, spatial_h=2, replica=2, replicated_axes=("replica",)
    ),
}
HYBRID_VOLUME = {
    "data 2 x spatial_d 2 x spatial_h 2": dict(data=2, spatial_d=2, spatial_h=2),
}
HYBRID_WEIGHTS = {
    "data 2 x tensor 2 x idle 2": dict(
        data=2, tensor=2, replica=2, replicated_axes=("replica",)
    ),
    "data 2 x fsdp 2 x tensor 2, zero 1": dict(data=2, fsdp=2, tensor=2, zero=1),
    "fsdp 4 x tensor 2": dict(fsdp=4, tensor=2),
}
HYBRID_BOTH = {
    "spatial_h 2 x tensor 2": dict(spatial_h=2, tensor=2),
    "data 2 x spatial_w 2 x tensor 2": dict(data=2, spatial_w=2, tensor=2),
    "fsdp 2 x spatial_h 2 x tensor 2": dict(fsdp=2, spatial_h=2, tensor=2),
}
HYBRID_TOKENS = {
    "data 4 x fsdp 2, zero 1": dict(data=4, fsdp=2, zero=1),
    "data 2 x fsdp 2 x idle 2": dict(
        data=2, fsdp=2, replica=2, replicated_axes=("replica",)
    ),
}
WITH_IMAGES = SINGLE_SPATIAL | HYBRID_SPATIAL | HYBRID_VOLUME | HYBRID_BOTH
WITH_WEIGHTS = SINGLE_WEIGHTS | HYBRID_WEIGHTS | HYBRID_BOTH
HYBRIDS = (
    HYBRID
    | HYBRID_SPATIAL
    | HYBRID_VOLUME
    | HYBRID_WEIGHTS
    | HYBRID_TOKENS
    | HYBRID_BOTH
)
LAYOUTS = SINGLE | SINGLE_SPATIAL | SINGLE_WEIGHTS | HYBRIDS

VOLUMES = ("cosmoflow", "unet3d")
"""Networks of samples with three dims."""

ELSEWHERE = ("convnext_t", "convnext_s", "convnext_b", "convnext_l", "resenc_unet3d")
MODELS = tuple(name for name in model_names() if name not in ("resnet152", *ELSEWHERE))


@dataclass(frozen=True)
class Cell:
    """One network in one layout."""

    model: str
    layout: str
    strategy: str = ""

    @property
    def axes(self):
        weights = {"tensor_strategy": self.strategy} if self.strategy else {}
        return LAYOUTS[self.layout] | weights

    @property
    def title(self):
        return f"{self.model}, {self.layout} {self.strategy}".strip()


def has_positions(model):
    """Whether samples are images, clips or volumes, which spatial axes can split."""
    return not takes_tokens(ModelConfig(name=model))


def layouts_of(model):
    """The layouts that apply to a network, by what its samples are."""
    if not has_positions(model):
        return {name: axes for name, axes in LAYOUTS.items() if name not in WITH_IMAGES}
    others = HYBRID_TOKENS | ({} if model in VOLUMES else HYBRID_VOLUME)
    return {name: axes for name, axes in LAYOUTS.items() if name not in others}


def whole():
    """Every cell that applies."""
    return [
        Cell(model, layout, strategy)
        for model in MODELS
        for layout in layouts_of(model)
        for strategy in (STRATEGIES if layout in WITH_WEIGHTS else ("",))
    ]


def dealt():
    """For each network every hybrid once, the strategies dealt out in turn."""
    cells = []
    for shift, model in enumerate(MODELS):
        turn = itertools.islice(itertools.cycle(STRATEGIES), shift % 3, None)
        for layout in layouts_of(model):
            if layout in HYBRIDS:
                strategy = next(turn) if layout in WITH_WEIGHTS else ""
                cells.append(Cell(model, layout, strategy))
    return cells


def cover():
    """What is dealt, of small hybrids each strategy once.

    A hybrid is small for a network that has another one with its axes and more. A
    network with six hybrids or fewer keeps all.
    """
    found = dealt()
    first = {(cell.layout, cell.strategy): cell for cell in reversed(found)}.values()
    return [
        cell
        for cell in found
        if cell in first or len(hybrids_of(cell.model)) <= 6 or not is_small(cell)
    ]


def hybrids_of(model):
    """The layouts of more than one axis that apply to a network."""
    return [layout for layout in layouts_of(model) if layout in HYBRIDS]


def axes_of(layout):
    """What a layout does, by name; an axis of replicas is idle here."""
    names = {"replica": "idle"}
    chosen = (axis for axis in LAYOUTS[layout] if axis != "replicated_axes")
    return {names.get(axis, axis) for axis in chosen}


def is_small(cell):
    """Whether another hybrid of its network has its axes and more."""
    others = map(axes_of, hybrids_of(cell.model))
    return any(axes_of(cell.layout) < other for other in others)


def refused():
    """Cells that do not apply: axes of images on what has no positions to split."""
    return [
        Cell(model, layout, STRATEGIES[0])
        for model in MODELS
        for layout in WITH_IMAGES
        if layout not in layouts_of(model)
    ]
