"""Stage parameters: those of different stages in slots of one shape on every device.

One program runs on all devices, so their arrays have the same shapes, though stages
have different parameters. The k-th largest leaf of every device of one kind lies in
slot k

    slot [pipe, fsdp, expert, tensor, n]   n elements of the largest leaf on a device

and smaller ones leave the rest at zero. Leaves of a kind decay or do not, have one
dtype, are split over the same axes and reduced alike, so an optimizer treats a slot as
it treats each leaf in it. A leaf that stages on several devices use is no slot: every
device has it whole.

In between, a leaf lies flat: as [fsdp, expert, tensor, n] with the parts of all
devices, as [fsdp, n] on one device that has gathered its fsdp shards.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.core.dtypes import MAX_VECTOR_ELEMENTS
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding, StateUpdate
from jaxdist.pipeline.plan_schedule import StagePlacement


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("matrices", "shared", "vectors"),
    meta_fields=(),
)
@dataclass(frozen=True, kw_only=True)
class SlotArrays:
    """Parameters, or values kept for each, as devices of a pipeline hold them."""

    matrices: Any
    """{number: slot} of kernels and embedding tables."""
    shared: Any
    """{name: leaf} of leaves that several stages use."""
    vectors: Any
    """{number: slot} of norms and biases, which have no weight decay."""


@dataclass(frozen=True, kw_only=True)
class ParamSlot:
    """One array in which every device has one leaf of its own, or none."""

    vector: bool
    """Whether its leaves are norms or biases."""
    places: tuple[int | None, ...]
    """The leaf of each device along the pipe axis, in the order of the network."""
    leaf: LeafSharding
    """How the array is sharded."""


@dataclass(frozen=True, kw_only=True)
class SlotLayout:
    """How the leaves of a network lie in slots."""

    plan: Plan
    """The layout."""
    leaves: tuple[LeafSharding, ...]
    """The network's leaves, in its order."""
    slots: tuple[ParamSlot, ...]
    """Matrices, then vectors, the largest first."""
    shared: tuple[int, ...]
    """Leaves that several devices use."""
    devices: tuple[frozenset[int], ...]
    """Devices along the pipe axis that use each leaf."""

    def held(self) -> tuple[LeafSharding, ...]:
        """Return how arrays of `SlotArrays` are sharded, in the order of its leaves."""
        held = self._held([slot.leaf for slot in self.slots], self.leaves)
        return tuple(jax.tree.leaves(held))

    def pack(self, leaves: Sequence[Any]) -> SlotArrays:
        """Put a network's whole leaves into slots."""
        given = dict(enumerate(leaves))
        rows = [self._stacked(slot, given) for slot in self.slots]
        return self._held(rows, leaves)

    def shapes(self, leaves: Sequence[Any]) -> SlotArrays:
        """Return shapes and dtypes of what `pack` returns.

        Args:
            leaves: shapes and dtypes of a network's leaves, or of values kept for
                each; those of a slot have one dtype.
        """
        rows = []
        for slot in self.slots:
            dtypes = {
                slot.leaf.dtype if place is None else leaves[place].dtype
                for place in slot.places
            }
            # Not for one dtype: `result_type` narrows 64 bits where x64 is off.
            dtype = dtypes.pop() if len(dtypes) == 1 else jnp.result_type(*dtypes)
            rows.append(jax.ShapeDtypeStruct(slot.leaf.shape, dtype))
        own = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
        return self._held(rows, own)

    def unpack(self, arrays: SlotArrays) -> list[jax.Array]:
        """Take a network's whole leaves out of slots."""
        slots, shared = self._apart(arrays)
        found: dict[int, Any] = dict(zip(self.shared, shared, strict=True))
        for slot, array in zip(self.slots, slots, strict=True):
            for device, place in enumerate(slot.places):
                if place is not None:
                    leaf = self.leaves[place]
                    found[place] = join_whole_leaf(array[device], leaf, self.plan)
        return [found[place] for place in range(len(self.leaves))]

    def pack_rows(self, named: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Put arrays [D, *leaf], stacked over D devices, into slots [D, *slot].

        Args:
            named: by the name of the leaf; all leaves of a slot, or none of them.
        """
        found = {}
        for slot in self.slots:
            own = [place for place in slot.places if place is not None]
            # Compression may leave out small leaves, but leaves of one slot are alike.
            if all(self.leaves[place].name in named for place in own):
                found[slot.leaf.name] = jax.vmap(partial(self._stacked, slot))(
                    {place: named[self.leaves[place].name] for place in own}
                )
        names = (self.leaves[place].name for place in self.shared)
        return found | {name: named[name] for name in names if name in named}

    def unpack_rows(self, named: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Take arrays [D, *leaf] out of slots [D, *slot]."""
        found = {}
        for slot in self.slots:
            for device, place in enumerate(slot.places):
                if place is not None and slot.leaf.name in named:
                    leaf = self.leaves[place]
                    rows = named[slot.leaf.name][:, device]
                    found[leaf.name] = jax.vmap(
                        lambda x, leaf=leaf: join_whole_leaf(x, leaf, self.plan)
                    )(rows)
        names = (self.leaves[place].name for place in self.shared)
        return found | {name: named[name] for name in names if name in named}

    def used(self, devices: Iterable[int]) -> tuple[int, ...]:
        """Return the longest prefix of each slot that some devices use, 0 if none does.

        Args:
            devices: along the pipe axis.
        """
        own, lengths = tuple(devices), []
        for slot in self.slots:
            used = [self.leaves[p] for d in own if (p := slot.places[d]) is not None]
            sizes = (local_size(self.plan, leaf) for leaf in used)
            lengths.append(max(sizes, default=0))
        return tuple(lengths)

    def of_fronts(
        self,
        arrays: SlotArrays,
        lengths: Sequence[int],
        fn: Callable[[list[jax.Array]], list[jax.Array]],
    ) -> SlotArrays:
        """Apply a function to a prefix of each slot and to shared leaves.

        Args:
            arrays: a device's part of each array.
            lengths: of the prefixes, as `used` returns them.
            fn: takes all at once, and returns as many of the same shapes.
        """
        slots, shared = self._apart(arrays)
        # One call for all of them, so that they can be reduced together.
        fronts = [x[..., :n] for x, n in zip(slots, lengths, strict=True) if n]
        new = iter(fn([*fronts, *shared]))
        slots = [
            x.at[..., :n].set(next(new)) if n else x
            for x, n in zip(slots, lengths, strict=True)
        ]
        return self._held(slots, dict(zip(self.shared, new, strict=True)))

    def own(self, arrays: SlotArrays, device: int) -> dict[int, jax.Array]:
        """Return the leaves of a device by place, from its part of the slots.

        Args:
            arrays: a device's part of each array, dims over fsdp whole.
            device: along the pipe axis.
        """
        slots, shared = self._apart(arrays)
        found = {
            place: x
            for place, x in zip(self.shared, shared, strict=True)
            if device in self.devices[place]
        }
        for slot, array in zip(self.slots, slots, strict=True):
            place = slot.places[device]
            if place is not None:
                leaf = self.leaves[place]
                found[place] = join_local_leaf(array[0, :, 0, 0], leaf, self.plan)
        return found

    def put(
        self, arrays: SlotArrays, device: int, leaves: Mapping[int, jax.Array]
    ) -> SlotArrays:
        """Overwrite leaves of a device in its part of the slots."""
        slots, shared = self._apart(arrays)
        for k, slot in enumerate(self.slots):
            place = slot.places[device]
            if place is not None and place in leaves:
                new = split_local_leaf(leaves[place], self.leaves[place], self.plan)
                # The front alone: smaller leaves leave the padding at zero.
                slots[k] = slots[k].at[0, :, 0, 0, : new.shape[-1]].set(new)
        for k, place in enumerate(self.shared):
            shared[k] = leaves.get(place, shared[k])
        return self._held(slots, dict(zip(self.shared, shared, strict=True)))

    def add(
        self,
        arrays: SlotArrays,
        device: int,
        grads: Mapping[int, jax.Array],
        start: jax.Array,
    ) -> SlotArrays:
        """Add gradients to the leaves of a device in its part of the slots.

        Args:
            arrays: sums, shaped as a device's part with dims over fsdp whole.
            device: along the pipe axis.
            grads: by place of the leaf.
            start: 0, as a value that the compiler does not know: see `add_to_prefix`.
        """
        slots, shared = self._apart(arrays)
        for k, slot in enumerate(self.slots):
            place = slot.places[device]
            if place is not None and place in grads:
                # In the dtype of the sums, which may be wider than that of the
                # gradient.
                more = split_local_leaf(grads[place], self.leaves[place], self.plan)
                slots[k] = add_to_prefix(slots[k], more.astype(slots[k].dtype), start)
        for k, place in enumerate(self.shared):
            if place in grads:
                shared[k] = shared[k] + grads[place].astype(shared[k].dtype)
        return self._held(slots, dict(zip(self.shared, shared, strict=True)))

    def _held(self, slots: Sequence[Any], leaves: Any) -> SlotArrays:
        pairs = list(zip(self.slots, slots, strict=True))
        # A tree with the two kinds apart lets optimizers decide on weight decay by
        # path, as they do for a whole network.
        kinds = [
            [x for s, x in pairs if s.vector is vector] for vector in (False, True)
        ]
        matrices, vectors = (dict(zip(map(_slot_key, range(len(k))), k)) for k in kinds)
        shared = {self.leaves[place].name: leaves[place] for place in self.shared}
        return SlotArrays(matrices=matrices, shared=shared, vectors=vectors)

    def _apart(self, held: SlotArrays) -> tuple[list[Any], list[Any]]:
        kinds = (held.matrices, held.vectors)
        slots = [kind[_slot_key(k)] for kind in kinds for k in range(len(kind))]
        return slots, [held.shared[self.leaves[place].name] for place in self.shared]

    def _stacked(self, slot: ParamSlot, leaves: Mapping[int, Any]) -> Any:
        """Return a slot of leaves by their place, [pipe, fsdp, expert, tensor, n]."""
        shape = slot.leaf.shape[1:]
        rows = []
        for place in slot.places:
            if place is None:
                rows.append(jnp.zeros(shape, slot.leaf.dtype))
                continue
            row = split_whole_leaf(leaves[place], self.leaves[place], self.plan)
            padding = shape[-1] - row.shape[-1]
            rows.append(jnp.pad(row, (*[(0, 0)] * 3, (0, padding))))
        return jnp.stack(rows)


def add_to_prefix(slot: jax.Array, update: jax.Array, start: jax.Array) -> jax.Array:
    """Add to the first elements of a slot, without a pass over the rest.

    Args:
        slot: `[1, fsdp, 1, 1, N]`.
        update: `[fsdp, n]`.
        start: 0, int32, as a value that the compiler does not know.
    """
    # Where XLA's CPU backend knows the place, it passes over the whole slot and loads
    # what is behind `update` under a mask. Where no memory is mapped, a masked load is
    # no error, but takes hundreds of cycles: 16 ms for 128 Ki numbers in a slot of a
    # million, or 0.3 where there is memory (2 shared AMD EPYC cores, 2026-11-23).
    at = (*[jnp.int32(0)] * 4, start)
    update = update[None, :, None, None]
    before = lax.dynamic_slice(slot, at, update.shape)
    return lax.dynamic_update_slice(slot, before + update, at)


def local_size(plan: Plan, leaf: LeafSharding) -> int:
    """Count the elements of a leaf on one device."""
    return math.prod(leaf.local_shape(plan))


def split_whole_leaf(x: Any, leaf: LeafSharding, plan: Plan) -> Any:
    """Split a whole leaf into the parts of all devices, [fsdp, expert, tensor, n]."""
    parts = x[None]
    # Each puts its dim in front of the others, so fsdp comes last.
    for dim, size in (
        (leaf.tensor_dim, plan.mesh.tensor),
        (leaf.expert_dim, plan.mesh.expert),
        (leaf.fsdp_dim, plan.mesh.fsdp),
    ):
        pieces = (
            jnp.split(parts, size, axis=dim + parts.ndim - len(leaf.shape))
            if dim is not None
            else [parts]
        )
        parts = jnp.stack(pieces)
    return parts.reshape(*parts.shape[:3], -1)


def join_whole_leaf(rows: Any, leaf: LeafSharding, plan: Plan) -> Any:
    """Join the parts of all devices, [fsdp, expert, tensor, n], to a whole leaf."""
    local = leaf.local_shape(plan)
    x = rows[..., : math.prod(local)].reshape(*rows.shape[:3], *local)
    # In reverse order of the split: the leading dims of `rows` are used up one by one.
    for dim in (leaf.fsdp_dim, leaf.expert_dim, leaf.tensor_dim):
        pieces = list(x)
        x = (
            pieces[0]
            if dim is None
            else jnp.concatenate(pieces, axis=dim + x.ndim - 1 - len(local))
        )
    return x


def split_local_leaf(x: jax.Array, leaf: LeafSharding, plan: Plan) -> jax.Array:
    """Split a device's gathered leaf, or its gradient, into fsdp shards, [fsdp, n]."""
    pieces = (
        jnp.split(x, plan.mesh.fsdp, leaf.fsdp_dim)
        if leaf.fsdp_dim is not None
        else [x]
    )
    return jnp.stack([piece.reshape(-1) for piece in pieces])


def join_local_leaf(rows: jax.Array, leaf: LeafSharding, plan: Plan) -> jax.Array:
    """Join fsdp shards, [fsdp, n], to a device's gathered leaf."""
    local = leaf.local_shape(plan)
    pieces = [row[: math.prod(local)].reshape(local) for row in rows]
    return (
        pieces[0] if leaf.fsdp_dim is None else jnp.concatenate(pieces, leaf.fsdp_dim)
    )


def _check_size(leaf: LeafSharding, size: int, plan: Plan) -> None:
    # Leaves are written to the front of a longer slot by int32 offsets.
    if size > MAX_VECTOR_ELEMENTS:
        raise BadInput(
            f"{leaf.name} is too large for a stage",
            rule=f"a device has at most {MAX_VECTOR_ELEMENTS:,} elements of a "
            "parameter: its offsets in a stage are int32",
            values=f"{list(leaf.shape)}: {size:,} elements on a device",
            remedy=f"plan.mesh.fsdp={2 * plan.mesh.fsdp}",
        )


def _slot_key(k: int) -> str:
    # Padded, so that trees, which sort their keys, hold slots in numeric order.
    return f"{k:04}"


def assign_slots(
    plan: Plan,
    leaves: Sequence[LeafSharding],
    leaf_stages: Sequence[frozenset[int]],
    placement: StagePlacement,
    is_compressed: Callable[[LeafSharding], bool] = lambda leaf: False,
) -> SlotLayout:
    """Assign the leaves of a network to slots.

    Args:
        plan: the layout.
        leaves: how each is sharded, the pipe axis aside.
        leaf_stages: stages that use each leaf.
        placement: where stages are; the replicas of one hold the same.
        is_compressed: whether the gradient of a leaf is compressed.

    Raises:
        BadInput: a device has more elements of a leaf than int32 can index.
    """
    owners = [{placement.stage_devices[stage] for stage in own} for own in leaf_stages]
    devices = [frozenset(itertools.chain(*own)) for own in owners]
    # A leaf of several stages is no slot: every device holds it whole.
    shared = tuple(place for place, own in enumerate(owners) if len(own) != 1)

    # Leaves of one slot go through the same optimizer, sharding and reduction, so a
    # kind is all that they have in common: (vector, dtype, split over tensor, over
    # expert, sharded over fsdp, compressed, with a gradient, how devices agree on it).
    kinds: dict[
        tuple[bool, str, bool, bool, bool, bool, bool, StateUpdate], list[list[int]]
    ] = defaultdict(lambda: [[] for _ in range(plan.mesh.pipe)])
    whole, sizes = frozenset(shared), [local_size(plan, leaf) for leaf in leaves]
    for place, leaf in enumerate(leaves):
        if place in whole:
            continue
        _check_size(leaf, sizes[place], plan)
        kind = (
            # Biases of several gates have two dims, and decay as little as others.
            len(leaf.shape) < 2 or "bias" in leaf.name.split("/"),
            np.dtype(leaf.dtype).name,
            leaf.tensor_dim is not None,
            leaf.expert_dim is not None,
            leaf.fsdp_dim is not None,
            is_compressed(leaf),
            leaf.has_gradient,
            leaf.update,
        )
        for device in devices[place]:
            kinds[kind][device].append(place)

    # The largest leaves of all devices share a slot, then the second largest, and so
    # on: that leaves least padding. Sorted kinds put matrices before vectors.
    slots: list[ParamSlot] = []
    for kind, device_leaves in sorted(kinds.items()):
        vector, dtype, tensor, expert, fsdp, sent, has_gradient, update = kind
        by_size = (sorted(own, key=lambda i: -sizes[i]) for own in device_leaves)
        for places in itertools.zip_longest(*by_size):
            # The largest leaf sets the length of the slot; the others are padded.
            most = max(sizes[place] for place in places if place is not None)
            parts = (
                plan.mesh.fsdp if fsdp else 1,
                plan.mesh.expert if expert else 1,
                plan.mesh.tensor if tensor else 1,
            )
            leaf = LeafSharding(
                name=f"{'vectors' if vector else 'matrices'}/{len(slots)}",
                shape=(plan.mesh.pipe, *parts, most),
                dtype=np.dtype(dtype),
                tensor_dim=3 if tensor else None,
                expert_dim=2 if expert else None,
                fsdp_dim=1 if fsdp else None,
                pipe_dim=0,
                compress_gradient=sent,
                has_gradient=has_gradient,
                update=update,
            )
            slots.append(ParamSlot(vector=vector, places=places, leaf=leaf))
    return SlotLayout(
        plan=plan,
        leaves=tuple(leaves),
        slots=tuple(slots),
        shared=shared,
        devices=tuple(devices),
    )
