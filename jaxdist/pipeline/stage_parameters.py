"""Slots: parameters of different stages in arrays of one shape for every device.

One program runs on all devices, so what they hold has the same shapes; stages have
other parameters each. The k-th largest leaf of every device of one kind lies in slot k

    slot [pipe, fsdp, tensor, n]      n numbers of the largest leaf there on a device

and smaller ones leave the rest at zero. Leaves of a kind decay or do not, have one
dtype, are split over the same axes and summed alike, so an optimizer treats a slot as
it treats each leaf in it. A leaf that stages on several devices use is no slot: all
have it whole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.pipeline.leaf_packing import (
    join_local_leaf,
    join_whole_leaf,
    local_size,
    split_local_leaf,
    split_whole_leaf,
)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("matrices", "shared", "vectors"),
    meta_fields=(),
)
@dataclass(frozen=True, kw_only=True)
class SlotArrays:
    """Parameters, or what is kept for each, as devices of a pipeline hold it."""

    matrices: Any
    """{number: slot} of kernels and tables."""
    shared: Any
    """{name: leaf} of those that several stages use."""
    vectors: Any
    """{number: slot} of norms and biases, which never decay."""


@dataclass(frozen=True, kw_only=True)
class ParamSlot:
    """One array in which every device has one leaf of its own, or none."""

    vector: bool
    """Whether its leaves are norms or biases."""
    places: tuple[int | None, ...]
    """The leaf of each device along the pipe axis, in the order of the network."""
    leaf: LeafSharding
    """How the array lies."""


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
        """Return how arrays of `SlotArrays` lie, in the order of its leaves."""
        return tuple(
            jax.tree.leaves(self._held([s.leaf for s in self.slots], self.leaves))
        )

    def pack(self, leaves: Sequence[Any]) -> SlotArrays:
        """Put a network's leaves, whole ones, into slots."""
        given = dict(enumerate(leaves))
        rows = [self._stacked(slot, given) for slot in self.slots]
        return self._held(rows, leaves)

    def shapes(self, leaves: Sequence[Any]) -> SlotArrays:
        """Return shapes and dtypes of what `pack` returns.

        Args:
            leaves: shapes and dtypes of a network's leaves, or of what is kept for
                each; those of a slot have one dtype.
        """
        rows = [
            jax.ShapeDtypeStruct(slot.leaf.shape, self._dtype(slot, leaves))
            for slot in self.slots
        ]
        own = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
        return self._held(rows, own)

    def unpack(self, arrays: SlotArrays) -> list[jax.Array]:
        """Take a network's leaves, whole ones, out of slots."""
        found: dict[int, Any] = dict(
            zip(self.shared, self._apart(arrays)[1], strict=True)
        )
        for slot, array in zip(self.slots, self._apart(arrays)[0], strict=True):
            for device, place in enumerate(slot.places):
                if place is not None:
                    found[place] = join_whole_leaf(
                        array[device], self.leaves[place], self.plan
                    )
        return [found[place] for place in range(len(self.leaves))]

    def pack_rows(self, named: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Put arrays [D, *leaf], one for each of D devices, into slots [D, *slot].

        Args:
            named: by the name of the leaf; all leaves of a slot, or none of them.
        """
        found = {}
        for slot in self.slots:
            own = [place for place in slot.places if place is not None]
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
        """Return how many numbers of each slot some devices have, 0 where none has any.

        Args:
            devices: along the pipe axis.
        """
        own = tuple(devices)
        found = ([slot.places[device] for device in own] for slot in self.slots)
        return tuple(
            max(
                (local_size(self.plan, self.leaves[p]) for p in row if p is not None),
                default=0,
            )
            for row in found
        )

    def of_fronts(
        self,
        arrays: SlotArrays,
        lengths: Sequence[int],
        fn: Callable[[list[jax.Array]], list[jax.Array]],
    ) -> SlotArrays:
        """Change the first numbers of each slot, and shared leaves; leave the rest.

        Args:
            arrays: a device's part of each array.
            lengths: how many numbers of each slot, as `used` says.
            fn: is given all at once, and returns as many of the same shapes.
        """
        slots, shared = self._apart(arrays)
        fronts = [x[..., :n] for x, n in zip(slots, lengths, strict=True) if n]
        new = iter(fn([*fronts, *shared]))
        slots = [
            x.at[..., :n].set(next(new)) if n else x
            for x, n in zip(slots, lengths, strict=True)
        ]
        return self._held(slots, dict(zip(self.shared, new, strict=True)))

    def own(self, arrays: SlotArrays, device: int) -> dict[int, jax.Array]:
        """Return the leaves of a device, from the slots that it has.

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
                found[place] = join_local_leaf(
                    array[0, :, 0], self.leaves[place], self.plan
                )
        return found

    def put(
        self, arrays: SlotArrays, device: int, leaves: Mapping[int, jax.Array]
    ) -> SlotArrays:
        """Write leaves of a device over those in the slots that it has."""
        slots, shared = self._apart(arrays)
        for k, slot in enumerate(self.slots):
            place = slot.places[device]
            if place is not None and place in leaves:
                new = split_local_leaf(leaves[place], self.leaves[place], self.plan)
                slots[k] = slots[k].at[0, :, 0, : new.shape[-1]].set(new)
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
        """Add to the leaves of a device, in the slots that it has.

        Args:
            arrays: sums, of the form of a device's part with dims over fsdp whole.
            device: along the pipe axis.
            grads: by place of the leaf.
            start: place of a slot's first number, 0, which the compiler does not know:
                see `add_to_prefix`.
        """
        slots, shared = self._apart(arrays)
        for k, slot in enumerate(self.slots):
            place = slot.places[device]
            if place is not None and place in grads:
                more = split_local_leaf(grads[place], self.leaves[place], self.plan)
                slots[k] = add_to_prefix(slots[k], more.astype(slots[k].dtype), start)
        for k, place in enumerate(self.shared):
            if place in grads:
                shared[k] = shared[k] + grads[place].astype(shared[k].dtype)
        return self._held(slots, dict(zip(self.shared, shared, strict=True)))

    def _held(self, slots: Sequence[Any], leaves: Any) -> SlotArrays:
        pairs = list(zip(self.slots, slots, strict=True))
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
        """Return a slot of leaves by their place, [pipe, fsdp, tensor, n]."""
        return jnp.stack([self._row(slot, place, leaves) for place in slot.places])

    def _dtype(self, slot: ParamSlot, leaves: Sequence[Any]) -> Any:
        """Return the dtype of a slot of leaves."""
        places = slot.places
        own = {slot.leaf.dtype if p is None else leaves[p].dtype for p in places}
        return own.pop() if len(own) == 1 else jnp.result_type(*own)

    def _row(
        self, slot: ParamSlot, place: int | None, leaves: Mapping[int, Any]
    ) -> Any:
        """Return what a device along the pipe axis has in a slot, [fsdp, tensor, n]."""
        shape = slot.leaf.shape[1:]
        if place is None:
            return jnp.zeros(shape, slot.leaf.dtype)
        rows = split_whole_leaf(leaves[place], self.leaves[place], self.plan)
        return jnp.pad(rows, ((0, 0), (0, 0), (0, shape[-1] - rows.shape[-1])))


def add_to_prefix(slot: jax.Array, update: jax.Array, start: jax.Array) -> jax.Array:
    """Add to the front of a slot, and pass over no more of it.

    XLA's CPU backend passes over the whole slot where it knows the place, and loads
    under a mask what is behind `update`. Where no memory is, a masked load is not an
    error, but takes hundreds of cycles: 16 ms for 128 Ki numbers in a slot of a
    million, or 0.3 where there is memory (2 shared AMD EPYC cores, 2026-11-23).

    Args:
        slot: `[1, fsdp, 1, N]`.
        update: `[fsdp, n]`.
        start: 0, int32.
    """
    at = (jnp.int32(0), jnp.int32(0), jnp.int32(0), start)
    update = update[None, :, None]
    before = lax.dynamic_slice(slot, at, update.shape)
    return lax.dynamic_update_slice(slot, before + update, at)


def _slot_key(k: int) -> str:
    return f"{k:04}"
