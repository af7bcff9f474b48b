"""A plan: how the training of a network is split over devices, as plain data."""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, Literal

from jaxdist.core.axes import AXES, BATCH_AXES, POSITION_AXES, SPATIAL_AXES, MeshShape
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan.aliases import rename_plan_keys
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.core.plan.shuffle import ShuffleConfig
from jaxdist.core.records import parse_fields, parse_record
from jaxdist.core.validation import check_fields, json_text, parse_json

PLAN_TARGET_KEY: Final = "made_for"
"""Key of a plan file that says what it was made for; no part of the plan."""


TensorSplit = Literal["pairs", "filter", "channel", "sequence"]
"""How the tensor axis splits weights."""

BlockLoops = Literal["auto", "on", "off"]
"""Whether equal blocks are one loop."""

AttentionChoice = Literal["auto", "einsum"]
"""Which kernel attention has."""

ContextForm = Literal["all_gather", "ring", "all_to_all"]
"""How attention reads tokens of other devices."""

LogitsChoice = Literal["auto", "chunks", "whole"]
"""How a loss holds logits."""

MemoryAction = Literal["save", "offload"]
"""What becomes of an activation that a plan names."""

AfterSpatial = Literal["repeat", "samples"]
"""What devices that shared images do where these are whole."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a training run is laid out: read by the step, the audit and the report."""

    mesh: MeshShape = field(default_factory=MeshShape)
    """Devices along each axis."""
    replicated_axes: tuple[str, ...] = ()
    """Axes allowed to repeat the same work on purpose (to test or to measure)."""
    placement: tuple[str, ...] = ()
    """Axes that lie innermost on devices, behind all others, outer to inner: `pipe`
    puts the stages side by side in a host. Empty leaves the order of the mesh."""
    host_order: tuple[str, ...] = ()
    """Host groups of a cluster with several, in the order in which their hosts are
    counted. Empty leaves the order of the cluster's file."""
    tensor_strategy: TensorSplit = "pairs"
    """How the tensor axis splits weights: Megatron pairs of layers, filters
    (column-parallel) or channels (row-parallel); sequence: pairs, and the tokens
    between them."""
    zero: Literal[1, 3] = 3
    """What the fsdp axis shards: 1 the optimizer's state, 3 parameters as well."""
    spatial_end: str = ""
    """Block before which the spatial axes end: images are gathered, and whole behind;
    empty splits them as far as they go."""
    # Samples cost less, but images are split just where a replica has one sample.
    spatial_end_mode: AfterSpatial = "repeat"
    """What devices that shared images do behind that block: repeat the same work, or
    exchange rows for samples and have samples of their own."""
    microbatches: int = 0
    """Parts of a batch whose gradients a step accumulates; 0 leaves that open."""
    remat: bool = False
    """Rematerialization: whether activations inside each block are computed again in
    the backward pass, not saved."""
    remat_end: str = ""
    """Block before which activations are computed again; its own and those behind it
    are saved. Empty computes all again."""
    remat_saves: tuple[str, ...] = ()
    """Layers whose outputs are kept although their block is computed again: patterns of
    paths, such as `block*.attention`."""
    offload: tuple[str, ...] = ()
    """Activations that wait for the backward pass in the host's memory: patterns of
    paths of layers, such as `block*.mlp.up`, in blocks that run as a loop. The path of
    a block itself stands for what it is given."""
    scan: BlockLoops = "auto"
    """Whether consecutive equal blocks run as one loop, so that neither the program nor
    its compile time grows with depth: auto does so on accelerators, but with images,
    and wherever activations are offloaded."""
    attention: AttentionChoice = "auto"
    """Kernel of attention: auto takes the fused one of the platform where it has one,
    einsum writes it out as products everywhere."""
    context: ContextForm = "all_gather"
    """How attention reads the tokens of other devices along the context axis:
    all_gather has all keys and values at once, ring those of one device at a time,
    all_to_all gives each device some heads of all tokens."""
    logits: LogitsChoice = "auto"
    """How the loss holds the logits of a vocabulary: in chunks of tokens, forward and
    backward, or whole; auto takes chunks on accelerators, of a device's many tokens."""
    pipe: PipelineConfig = field(default_factory=PipelineConfig)
    """How blocks are divided into stages along the pipe axis."""
    reduce: ReductionConfig = field(default_factory=ReductionConfig)
    """How gradients are summed over the data axis."""
    shuffle: ShuffleConfig = field(default_factory=ShuffleConfig)
    """From how far away the samples of an epoch are drawn."""
    outer: OuterConfig = field(default_factory=OuterConfig)
    """How replicas along the replica axis come together."""

    def __post_init__(self) -> None:
        for name in self.replicated_axes:
            if name not in AXES:
                known = did_you_mean(name, AXES) or ", ".join(AXES)
                raise BadInput(f"no mesh axis {name}", remedy=f"did you mean {known}?")
        rule = f"plan.placement has some of {', '.join(AXES)}, each once"
        values = f"plan.placement = {','.join(self.placement)}"
        for name in self.placement:
            if name not in AXES:
                near = did_you_mean(name, AXES)
                raise BadInput(
                    f"no mesh axis {name} to be placed",
                    rule=rule,
                    values=values,
                    remedy=f"did you mean {near}?" if near else "plan.placement=pipe",
                )
        _check_once(
            "an axis lies on devices in one place", "plan.placement", self.placement
        )
        _check_once(
            "a group's hosts are counted once", "plan.host_order", self.host_order
        )

        # Images can only be gathered where a spatial axis has split them.
        if self.spatial_end and self.mesh.spatial_shards == 1:
            raise BadInput(
                "no images are split that could be gathered",
                rule="plan.spatial_end is for a spatial axis larger than one",
                values=f"plan.spatial_end = {self.spatial_end}, "
                "every spatial axis has one device",
                remedy=("plan.mesh.spatial_h=2", "plan.spatial_end="),
            )
        if self.spatial_end_mode == "samples" and not self.spatial_end:
            raise BadInput(
                "rows are exchanged for samples nowhere",
                rule="plan.spatial_end_mode is for plan.spatial_end, the block where",
                values="plan.spatial_end_mode = samples, plan.spatial_end is empty",
                remedy=("plan.spatial_end=head", "plan.spatial_end_mode=repeat"),
            )

        # PipeDream gives stages different numbers of devices, all from the pipe axis.
        replicas, devices = self.pipe.replicas, self.mesh.pipe
        if replicas and (min(replicas) < 1 or sum(replicas) != devices):
            own = [max(1, count) for count in replicas]
            raise BadInput(
                "the replicas of stages are not the devices of the pipe axis",
                rule="plan.pipe.replicas has the devices of each stage, at least one "
                "each, and their sum is plan.mesh.pipe",
                values=f"plan.pipe.replicas = {','.join(map(str, replicas))}, "
                f"plan.mesh.pipe = {devices}",
                remedy=f"plan.pipe.replicas={','.join(map(str, own))} "
                f"plan.mesh.pipe={sum(own)}",
            )
        if self.microbatches < 0:
            raise BadInput(
                "a plan has no such number of microbatches",
                rule="plan.microbatches is a number of parts, or 0, which leaves it to "
                "optim.accumulate",
                values=f"plan.microbatches = {self.microbatches}",
                remedy="plan.microbatches=0",
            )
        if self.remat_end and not self.remat:
            raise BadInput(
                "no blocks are computed again that could end",
                rule="plan.remat_end is for plan.remat=true",
                values=f"plan.remat_end = {self.remat_end}, plan.remat = False",
                remedy=("plan.remat=true", "plan.remat_end="),
            )
        if self.remat_saves and not self.remat:
            raise BadInput(
                "no blocks are computed again of which outputs could be kept",
                rule="plan.remat_saves is for plan.remat=true",
                values=f"plan.remat_saves = {','.join(self.remat_saves)}, "
                "plan.remat = False",
                remedy=("plan.remat=true", "plan.remat_saves="),
            )
        if self.offload and self.scan == "off":
            raise BadInput(
                "activations are offloaded in loops alone",
                rule="plan.offload is for blocks that run as one loop: of unrolled "
                "blocks a compiler fetches everything at once",
                values=f"plan.offload = {','.join(self.offload)}, plan.scan = off",
                remedy=("plan.scan=auto", "plan.offload="),
            )

    def on(self, mesh: MeshShape) -> "Plan":
        """Return the plan on another mesh, without settings of axes that this lacks.

        >>> plan = Plan(mesh=MeshShape(data=2, spatial_h=2), spatial_end="head")
        >>> plan.on(MeshShape(data=2)).title
        'data 2'
        """
        # Cuts and replicas of stages are counted for one number of stages.
        pipe = self.pipe if mesh.pipe == self.mesh.pipe else PipelineConfig()
        outer = self.outer if mesh.replica > 1 else OuterConfig()
        split = mesh.spatial_shards > 1
        return replace(
            self,
            mesh=mesh,
            outer=outer,
            pipe=pipe,
            spatial_end=self.spatial_end if split else "",
            spatial_end_mode=self.spatial_end_mode if split else "repeat",
        )

    @property
    def title(self) -> str:
        """The plan as people write it: the name of a layout everywhere.

        >>> Plan(mesh=MeshShape(data=4, spatial_h=2)).title
        'data 4 x spatial_h 2'
        >>> Plan(mesh=MeshShape(spatial_h=2), spatial_end="block3").title
        'spatial_h 2 until block3'
        >>> Plan().title
        'data 1'
        """
        named = [f"{name} {size}" for name, size in self.mesh.items() if size > 1]
        end = f" until {self.spatial_end}" if self.spatial_end else ""
        end += ", then samples" if self.spatial_end_mode == "samples" else ""
        return (" x ".join(named) or "data 1") + end

    @property
    def label(self) -> str:
        """The title and what else was chosen: tells plans of one mesh apart.

        >>> from jaxdist.core.plan.pipeline import PipelineConfig
        >>> Plan(mesh=MeshShape(data=2, pipe=2), microbatches=8, remat=True).label
        'pipe 2 x data 2, 8 microbatches, 1f1b, remat'
        >>> Plan(mesh=MeshShape(data=2, tensor=2), placement=("data",)).label
        'data 2 x tensor 2, data inside'
        >>> Plan(mesh=MeshShape(pipe=2), host_order=("t4",)).label
        'pipe 2, 1f1b, t4 first'
        """
        return ", ".join((self.title, *self._choices()))

    def _choices(self) -> Iterator[str]:
        if self.inside:
            yield f"{' x '.join(self.inside)} inside"
        if self.microbatches > 1:
            yield f"{self.microbatches} microbatches"
        if self.stages > 1:
            chunks = f" x {self.pipe.chunks}" if self.pipe.chunks > 1 else ""
            yield f"{self.pipe.schedule}{chunks}"
        if self.host_order:
            yield f"{', '.join(self.host_order)} first"
        if self.pipe.cuts:
            yield "own cuts"
        if self.mesh.tensor > 1 and self.tensor_strategy != "pairs":
            yield f"weights by {self.tensor_strategy}"
        if self.mesh.context > 1 and self.context != "all_gather":
            yield f"context by {self.context}"
        if self.mesh.fsdp > 1 and self.zero != 3:
            yield f"zero {self.zero}"
        if self.remat:
            end = f" until {self.remat_end}" if self.remat_end else ""
            yield f"remat{end}"
        if self.remat_saves:
            yield f"{', '.join(self.remat_saves)} kept"
        if self.offload:
            yield f"{', '.join(self.offload)} on the host"
        if self.reduce.algorithm != "exact":
            yield self.reduce.algorithm

    def remade(self, blocks: Sequence[str]) -> tuple[str, ...]:
        """Return the blocks whose insides are computed again.

        Args:
            blocks: all of a network's, in order; `remat_end` is one of them.

        >>> Plan(remat=True, remat_end="block2").remade(("stem", "block2", "head"))
        ('stem',)
        >>> Plan(remat=True).remade(("stem", "head"))
        ('stem', 'head')
        """
        if not self.remat:
            return ()
        end = blocks.index(self.remat_end) if self.remat_end else None
        return (*blocks,)[:end]

    @property
    def without_remat(self) -> "Plan":
        """The plan with everything kept of what it computes again.

        >>> Plan(remat=True, remat_end="head").without_remat == Plan()
        True
        """
        return replace(self, remat=False, remat_end="", remat_saves=())

    def memory_action(self, path: str) -> MemoryAction | None:
        """Return what a plan says of the output of a layer that backward passes read.

        Args:
            path: of the layer or block.

        >>> plan = Plan(remat=True, offload=("block*.up",))
        >>> plan.memory_action("block1.mlp.up"), plan.memory_action("block1.mlp")
        ('offload', None)
        """
        # Searches ask of every layer, and few plans say anything.
        if not (self.offload or self.remat_saves):
            return None
        # First: what waits on the host is kept as well.
        host, device = self._memory_patterns
        if host.match(path):
            return "offload"
        return "save" if device.match(path) else None

    @cached_property
    def _memory_patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """What matches the paths of layers that wait on the host, and on the device."""
        host, device = (
            # Without patterns nothing matches: no text has something behind its end.
            re.compile("|".join(map(fnmatch.translate, patterns)) or r"\Z.")
            for patterns in (self.offload, self.remat_saves)
        )
        return host, device

    def attention_platform(self, platform: str) -> str:
        """Return whose kernel attention has: written out is that of a CPU.

        Args:
            platform: of the devices: cpu, gpu or tpu.

        >>> Plan(attention="einsum").attention_platform("tpu")
        'cpu'
        """
        return "cpu" if self.attention == "einsum" else platform

    @property
    def placed(self) -> MeshPlacement:
        """The mesh on devices.

        >>> Plan(placement=("pipe", "data")).placed.order[-3:]
        ('tensor', 'pipe', 'data')
        """
        # The last axes are the innermost, within a host where they fit.
        others = (axis for axis in AXES if axis not in self.placement)
        order = (*others, *self.placement)
        return MeshPlacement(mesh=self.mesh, order=order, host_order=self.host_order)

    @property
    def inside(self) -> tuple[str, ...]:
        """Axes that the placement moves; none where all lie as without it.

        >>> Plan(mesh=MeshShape(data=2, tensor=2), placement=("tensor",)).inside
        ()
        """
        # Axes of one device lie nowhere, so moving them changes nothing.
        real = [a for a in self.placed.order if self.mesh.size(a) > 1]
        usual = real == sorted(real, key=AXES.index)
        return () if usual else tuple(a for a in self.placement if a in real)

    @property
    def replicas(self) -> int:
        """Copies of the network that train on their own between outer steps.

        >>> from jaxdist.core.plan.outer import OuterConfig
        >>> diloco = OuterConfig(sync_interval=50)
        >>> Plan(mesh=MeshShape(replica=2), outer=diloco).replicas
        2
        """
        # Without outer steps nothing ever averages them: the axis only repeats work.
        alone = self.outer.sync_interval and "replica" not in self.replicated_axes
        return self.mesh.replica if alone else 1

    @property
    def stages(self) -> int:
        """Into how many parts the network is cut.

        >>> from jaxdist.core.plan.pipeline import PipelineConfig
        >>> Plan(mesh=MeshShape(pipe=2), pipe=PipelineConfig(chunks=2)).stages
        4
        """
        devices = 1 if "pipe" in self.replicated_axes else self.mesh.pipe
        if devices == 1:
            return 1
        # PipeDream's stages may share out devices unevenly; others have equal chunks.
        return len(self.pipe.replicas) or devices * self.pipe.chunks

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """Axes along which the samples of a global batch are divided."""
        return ("replica", *BATCH_AXES) if self.replicas > 1 else BATCH_AXES

    @property
    def batch_shards(self) -> int:
        """Into how many parts the samples of a global batch are divided."""
        return self.mesh.size(*self.batch_axes)

    @property
    def sample_axes(self) -> tuple[str, ...]:
        """Axes along which devices have samples of their own where the loss is made."""
        own = self.spatial_end_mode == "samples"
        return (*self.batch_axes, *SPATIAL_AXES) if own else self.batch_axes

    @property
    def sum_axes(self) -> tuple[str, ...]:
        """Axes over which every device holds a different share of the loss.

        Along the pipe axis the devices of the last stage hold it, and others none.
        """
        # Not over replicas: each has a loss of its own.
        # Along tensor all compute the same loss, and each counts as an equal part of
        # it.
        used = {"pipe", *BATCH_AXES, *POSITION_AXES, "tensor"} - set(
            self.replicated_axes
        )
        return tuple(a for a, size in self.mesh.items() if a in used and size > 1)

    def to_json(self) -> str:
        """Write the plan; `from_json` reads the same value back."""
        return json_text(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan that `to_json` wrote.

        A file also says what it was made for, which is no part of the plan; one of an
        older version may have keys under their old names.

        Raises:
            BadInput: a field that no plan has, or one under its old and its new name.
        """
        return cls.from_tree(parse_json(text))

    @classmethod
    def from_tree(cls, tree: Any) -> "Plan":
        """Make a plan of plain values, as `from_json` does.

        Raises:
            BadInput: as `from_json`.
        """
        if isinstance(tree, Mapping):
            own = {key: each for key, each in tree.items() if key != PLAN_TARGET_KEY}
            tree = rename_plan_keys(own)
        values = _check_known_fields(cls, tree, "a plan")
        parts = {
            "mesh": MeshShape,
            "shuffle": ShuffleConfig,
            "pipe": PipelineConfig,
            "reduce": ReductionConfig,
            "outer": OuterConfig,
        }
        for name, kind in parts.items():
            # Each part by itself, so that an error names `plan.PART`.
            part = _check_known_fields(kind, tree.get(name, {}), f"plan.{name}")
            for axis, size in part.items() if name == "mesh" else ():
                # By the type itself: True is an integer to Python.
                if type(size) is not int:
                    raise BadInput(
                        f"plan.mesh.{axis} is no number of devices",
                        rule="the size of an axis is a whole number",
                        values=f"plan.mesh.{axis} = {size!r}",
                        remedy=f"plan.mesh.{axis}=2",
                    )
            values[name] = parse_record(kind, part, f"plan.{name}")
        own = {key: each for key, each in tree.items() if key not in parts}
        return cls(**values | parse_fields(cls, own, "a plan"))


def _check_once(fault: str, key: str, names: tuple[str, ...]) -> None:
    """Refuse a name that stands twice in a list."""
    once = tuple(dict.fromkeys(names))
    if once != names:
        raise BadInput(
            fault,
            rule=f"{key} has each name once",
            values=f"{key} = {','.join(names)}",
            remedy=f"{key}={','.join(once)}",
        )


def _check_known_fields(cls: type, tree: Any, context: str) -> dict[str, Any]:
    """Return the fields of an object of JSON, all of which a dataclass has."""
    if not isinstance(tree, dict):
        raise BadInput(
            f"{context} is no {type(tree).__name__}",
            rule="a plan is an object of JSON, as a run folder's plan.json is",
            values=repr(tree)[:60],
            remedy="jaxdist plan digits --cluster testbed --devices 4 -o plan.json",
        )
    check_fields(tree, [field.name for field in fields(cls)], context)
    return dict(tree)
