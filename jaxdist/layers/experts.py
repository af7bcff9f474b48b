"""A mixture of experts: each token goes through the few of many layers that it scores.

With p the softmax of a token's scores over E experts, and K its k largest,

    y = sum over e in K of p_e / (sum of p over K) * down_e (silu(gate_e x) * up_e x)

Jiang et al. 2024, arXiv:2401.04088, section 2.1. Without a capacity no token is left
out: choices are sorted by expert, and products of unlike numbers of rows are one
`jax.lax.ragged_dot`. With one an expert has as many slots in each sample, so products
are of equal sizes, and choices that find no slot left are dropped (Lepikhin et al.
2020, arXiv:2006.16668, section 2.2, where a group is a sample here). Slots of a sample
do not depend on where others are, so that a split of samples changes nothing. Devices
that share a sample's tokens tell each other how often they chose each expert, and know
then which of their choices find a slot.

Along the `expert` axis devices have samples of their own, and some of the experts:
slots of all experts go to the devices of these, and results come back, by all-to-alls.

Balance (Fedus et al. 2021, arXiv:2101.03961, equation 4), with f_e the share of all
choices that are expert e, and P_e the mean of p_e over all tokens:

    loss = E sum_e f_e P_e          1 where all experts are chosen alike

and router z (Zoph et al. 2022, arXiv:2202.08906, equation 5): the mean over tokens of
the square of the logarithm of the sum of the exponentials of their scores.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxdist.collectives.sharded_leaves import all_gather_array
from jaxdist.core.array_tags import EXPERT_PRODUCT, MOVED_ROWS
from jaxdist.core.axes import BATCH_AXES, CONTEXT_AXIS, EXPERT_AXIS
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers.all_gather_slices import all_to_all_dims
from jaxdist.layers.manual_axes import manual_axes, manual_axis_sizes
from jaxdist.layers.tensor_role import Role, combine_output
from jaxdist.layers.token_order import context_devices, in_order, local_tokens

EXPERT_WEIGHTS: Final = ("gate", "up", "down")
"""Names of the weights that each expert has of its own, `[E, in, out]`."""


class ChoiceShares(nnx.BatchStat[jax.Array]):
    """How tokens of the last batch in training were routed, `[E + 1]`.

    Shares of all choices: of each expert, and of those that found no slot.
    """


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How tokens find their experts."""

    chosen: int = 2
    """Experts that a token goes through."""
    capacity_factor: float | None = None
    """Slots of an expert in a sample in training, in multiples of its equal share of
    the choices; None: as many as can be needed."""
    balance_weight: float = 0.0
    """Weight of the load-balancing loss."""
    z_weight: float = 0.0
    """Weight of the router's z loss."""


class Experts(nnx.Module):
    """Feed-forward experts (SwiGLU) and the router that picks some for each token.

    Args:
        features: of a token.
        hidden: features inside an expert.
        count: experts.
        routing: how tokens find theirs.
        spreads: standard deviations of first weights: of `down`, and of the others.
        dtype: of activations; None follows input and weights.
        rngs: source of first weights.
    """

    scope: str = ""
    role: Role | None = None
    main_weight = "down"
    loss_shares: int = 1
    """Into how many shares the loss is divided whose gradient a device computes."""
    keeps_choices = False
    """Whether `choice_shares` follow the tokens: in the step of a run."""

    def __init__(
        self,
        features: int,
        hidden: int,
        count: int,
        routing: Routing,
        *,
        spreads: tuple[float, float] = (0.02, 0.02),
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.routing, self.dtype, self.deterministic = routing, dtype, False

        def draw(spread: float, *shape: int) -> nnx.Param[jax.Array]:
            make = nnx.initializers.normal(spread)
            return nnx.Param(make(rngs.params(), shape, jnp.float32))

        last, spread = spreads
        self.router = draw(spread, features, count)
        self.gate = draw(spread, count, features, hidden)
        self.up = draw(spread, count, features, hidden)
        self.down = draw(last, count, hidden, features)
        self.choice_shares = ChoiceShares(jnp.zeros(count + 1))

    @property
    def filled_share(self) -> float:
        """The largest share of the slots that choices can fill in training."""
        factor = self.routing.capacity_factor
        # More slots than tokens there are never: no token chooses an expert twice.
        most = self.router.shape[-1] / self.routing.chosen
        return 1.0 if factor is None else 1 / max(1.0, min(factor, most))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map each token of `[B, T, C]`; training may drop choices of full experts."""
        with jax.named_scope(self.scope or "Experts"):
            held = (self.router, self.gate, self.up, self.down)
            x, router, *weights = dtypes.promote_dtype(
                (x, *(w[...] for w in held)), dtype=self.dtype
            )
            shares, chosen = self._route(x, router)
            # Evaluation and generation drop nothing.
            tokens = x.shape[1] * context_devices()
            slots = 0 if self.deterministic else training_slots(self, tokens)
            if not slots and EXPERT_AXIS not in manual_axis_sizes():
                y = self._sorted(x, chosen, weights)
            else:
                y = self._in_slots(x, chosen, weights, slots)
            wide = accumulation_dtype(x.dtype)
            y = jnp.einsum("btkc,btk->btc", y.astype(wide), shares).astype(x.dtype)
            return combine_output(y, self.role, None)

    def _route(self, x: jax.Array, router: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return each token's share of its experts and which these are, `[B, T, k]`."""
        # In float32 at least: rounding to 16 bits would change which are the largest.
        wide = accumulation_dtype(x.dtype)
        scores = jnp.einsum(
            "btc,ce->bte",
            x.astype(wide),
            router.astype(wide),
            precision=lax.Precision.HIGHEST,
        )
        probabilities = jax.nn.softmax(scores)
        _, chosen = lax.top_k(lax.stop_gradient(probabilities), self.routing.chosen)
        if not self.deterministic and (
            self.routing.balance_weight or self.routing.z_weight
        ):
            loss = jnp.zeros((), wide)
            if self.routing.balance_weight:
                loss += self.routing.balance_weight * _imbalance(probabilities, chosen)
            if self.routing.z_weight:
                each = jnp.square(jax.nn.logsumexp(scores, -1))
                loss += self.routing.z_weight * each.mean()
            # The network's own outputs stay what they are: the gradient of the loss
            # enters here, on whichever stage, in whichever loop this layer is.
            probabilities = _add_loss(probabilities, loss / self.loss_shares)
        own = jnp.take_along_axis(probabilities, chosen, -1)
        return own / own.sum(-1, keepdims=True), chosen

    def _sorted(
        self, x: jax.Array, chosen: jax.Array, weights: list[jax.Array]
    ) -> jax.Array:
        """Return each token's results of its experts, `[B, T, k, C]`; all are here."""
        experts = chosen.reshape(1, -1)
        order, place = _sort(experts)
        rows = _move(
            x.reshape(1, -1, x.shape[-1]),
            order // self.routing.chosen,
            place.reshape(1, -1, self.routing.chosen),
        )
        sizes = _count(experts[0], weights[0].shape[0])
        self._record(sizes, jnp.zeros((), jnp.int32))
        y = _grouped_swiglu(rows[0], sizes, weights)
        return _move(y[None], place, order[..., None]).reshape(*chosen.shape, -1)

    def _record(self, counts: jax.Array, dropped: jax.Array) -> None:
        """Keep how the tokens of this device were routed.

        Args:
            counts: choices of each expert, int32 `[E]`.
            dropped: choices without a slot, int32 [].
        """
        if self.keeps_choices and not self.deterministic:
            # In the dtype of the variable: that of the parameters.
            parts = jnp.append(counts, dropped).astype(self.choice_shares.dtype)
            self.choice_shares.set_value(parts / parts[:-1].sum())

    def _in_slots(
        self, x: jax.Array, chosen: jax.Array, weights: list[jax.Array], slots: int
    ) -> jax.Array:
        """Return each token's results of its experts, 0 where it was dropped.

        Args:
            x: `[B, T, C]`.
            chosen: int32 `[B, T, k]`.
            weights: of this device's experts.
            slots: of an expert in each whole sample; 0: as many as can be needed.
        """
        samples, tokens, features = x.shape
        is_dropless, whole = not slots, slots
        # This device's tokens may have all slots of a sample, each token at most one.
        slots = min(slots or tokens, tokens)
        devices = manual_axis_sizes().get(EXPERT_AXIS, 1)
        experts = weights[0].shape[0] * devices
        # First choices before second ones, and tokens in order.
        wanted = chosen.swapaxes(1, 2).reshape(samples, -1)
        choices = wanted.shape[1]
        order, place = _sort(wanted)
        counts = _count(wanted, experts)
        choice_counts = counts.sum(0, dtype=jnp.int32)
        starts = jnp.cumsum(counts, -1, dtype=jnp.int32) - counts
        limit: int | jax.Array = slots
        if whole and context_devices() > 1:
            counts = _slots_taken(chosen, experts, whole)
            limit = _take(counts, wanted)
        # The choice in each slot, and the slot of each choice; out of range for none.
        here = lax.broadcasted_iota(jnp.int32, (1, 1, slots), 2)
        taken = here < counts[..., None]
        at = jnp.minimum(starts[..., None] + here, choices - 1)
        choice = _take(order, at.reshape(samples, -1))
        choice = jnp.where(taken.reshape(samples, -1), choice, choices)
        number = place - _take(starts, wanted)
        self._record(choice_counts, (number >= limit).sum(dtype=jnp.int32))
        slot = jnp.where(number < limit, wanted * slots + number, experts * slots)

        token = jnp.where(choice < choices, choice % tokens, tokens)
        slots_of = slot.reshape(samples, self.routing.chosen, tokens).swapaxes(1, 2)
        given = _move(x, token, slots_of).reshape(samples, experts, slots, features)
        if devices > 1:
            given = all_to_all_dims(given, 1, 0, EXPERT_AXIS)
        if is_dropless:
            if devices > 1:
                counts = lax.all_to_all(counts, EXPERT_AXIS, 1, 0, tiled=True)
            # A token has a slot of each expert that it chose, of which some are here.
            here_at_most = min(self.routing.chosen, weights[0].shape[0])
            most = given.shape[0] * tokens * here_at_most
            y = _compact_swiglu(given, here < counts[..., None], weights, most)
        else:
            # Empty slots are zeros, of which an expert makes zeros.
            y = _batched_swiglu(given, weights)
        if devices > 1:
            y = all_to_all_dims(y, 0, 1, EXPERT_AXIS)
        y = _move(y.reshape(samples, -1, features), slot, choice[..., None])
        return y.reshape(samples, self.routing.chosen, tokens, -1).swapaxes(1, 2)


def training_slots(layer: Experts, tokens: int) -> int:
    """Return the slots of an expert in a sample; 0: as many as can be needed.

    Args:
        layer: the experts.
        tokens: of a sample.
    """
    if layer.routing.capacity_factor is None:
        return 0
    share = layer.routing.chosen * tokens / layer.router.shape[-1]
    # 1.1 x 10 is a little more than 11 as a float. No token chooses an expert twice.
    return min(math.ceil(round(layer.routing.capacity_factor * share, 6)), tokens)


def _slots_taken(chosen: jax.Array, experts: int, slots: int) -> jax.Array:
    """Return how many slots of each expert this device's choices get, int32 `[B, E]`.

    Choices come in the order of one device, first ones of all tokens before second
    ones, so those of a device that find a slot are the first of its own.

    Args:
        chosen: int32 `[B, T / n, k]`, of this device's two chunks of each sample.
        experts: of all devices.
        slots: of an expert in each sample.
    """
    samples, tokens, ranks = chosen.shape
    chunks = chosen.swapaxes(1, 2).reshape(samples, ranks, 2, tokens // 2)
    own = _count(chunks, experts)
    every = in_order(all_gather_array(own, CONTEXT_AXIS, 2), 2)
    flat = every.reshape(samples, -1, experts)
    before = jnp.cumsum(flat, 1, dtype=jnp.int32) - flat
    taken = jnp.clip(slots - before, 0, flat).reshape(every.shape)
    return local_tokens(taken, 2).sum((1, 2), dtype=jnp.int32)


def _imbalance(probabilities: jax.Array, chosen: jax.Array) -> jax.Array:
    """Return the load-balancing loss of this device's tokens.

    The shares of experts are those of all devices' tokens, so that the mean over
    devices is the loss of the whole batch.
    """
    counts = _count(chosen.reshape(-1), probabilities.shape[-1])
    if axes := manual_axes((*BATCH_AXES, CONTEXT_AXIS)):
        counts = lax.psum(counts, axes)
    counts = counts.astype(probabilities.dtype)
    means = probabilities.mean((0, 1))
    return probabilities.shape[-1] * (counts / counts.sum() * means).sum()


@jax.custom_vjp
def _add_loss(x: jax.Array, loss: jax.Array) -> jax.Array:
    """Return `x`; the gradient of a loss is added to that of what is behind it."""
    return x


_add_loss.defvjp(
    lambda x, loss: (x, None),
    lambda _, ct: (ct, jnp.ones((), ct.dtype)),
)


def _count(experts: jax.Array, count: int) -> jax.Array:
    """Return how often each expert is chosen along the last dim, int32."""
    numbers = jnp.arange(count, dtype=experts.dtype)
    return (experts[..., None] == numbers).sum(-2, dtype=jnp.int32)


def _sort(numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the stable order of each row of int32 `[B, n]`, and its inverse."""
    here = lax.broadcasted_iota(jnp.int32, numbers.shape, 1)
    _, order = lax.sort((numbers, here), dimension=1, num_keys=1)
    # Compilers of TPUs take seconds for a second sort of many numbers.
    place = jax.vmap(
        lambda own, i: own.at[i].set(
            lax.iota(jnp.int32, own.shape[0]),
            unique_indices=True,
            mode="promise_in_bounds",
        )
    )(jnp.zeros_like(order), order)
    return order, place


def _take(x: jax.Array, at: jax.Array) -> jax.Array:
    """Return rows of each sample: `[B, n, ...]` at int32 `[B, m]`, below n."""
    return jax.vmap(lambda own, i: own.at[i].get(mode="promise_in_bounds"))(x, at)


def _take_or_zero(x: jax.Array, at: jax.Array) -> jax.Array:
    """Return rows `[B, m, C]` of `[B, n, C]` at int32 `[B, m]`, zeros from n on."""
    found = _take(x, jnp.minimum(at, x.shape[1] - 1))
    return jnp.where((at < x.shape[1])[..., None], found, jnp.zeros_like(found))


@jax.custom_vjp
def _move(x: jax.Array, source: jax.Array, targets: jax.Array) -> jax.Array:
    """Return rows of each sample in another order, some of them several times.

    Args:
        x: `[B, n, C]`.
        source: int32 `[B, m]`, the row that each of the results is; from n on: zeros.
        targets: int32 `[B, n, k]`, the results that each row is; from m on: none.
    """
    return checkpoint_name(_take_or_zero(x, source), MOVED_ROWS)


def _move_back(targets: jax.Array, ct: jax.Array) -> tuple[jax.Array, None, None]:
    # Rows are taken here as well: accelerators are slow to add to rows at places that
    # may be the same, and nothing says in which order they do it.
    wide = accumulation_dtype(ct.dtype)
    each = [_take_or_zero(ct, targets[..., i]) for i in range(targets.shape[-1])]
    total = sum((x.astype(wide) for x in each[1:]), each[0].astype(wide))
    return total.astype(ct.dtype), None, None


_move.defvjp(
    lambda x, source, targets: (_move(x, source, targets), targets), _move_back
)


def _swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(gate) * up


def _grouped_swiglu(
    rows: jax.Array, sizes: jax.Array, weights: list[jax.Array]
) -> jax.Array:
    """Map rows `[R, C]`, sorted by expert, of which each has int32 `[E]` so many."""
    gate, up, down = weights
    inner = jax.checkpoint(_swiglu)(
        lax.ragged_dot(rows, gate, sizes), lax.ragged_dot(rows, up, sizes)
    )
    return lax.ragged_dot(inner, down, sizes)


def _batched_swiglu(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    """Map slots `[B, E, n, C]`, each by the weights of its expert."""

    def product(x: jax.Array, weight: jax.Array) -> jax.Array:
        return checkpoint_name(jnp.einsum("benc,ecf->benf", x, weight), EXPERT_PRODUCT)

    gate, up, down = weights
    inner = jax.checkpoint(_swiglu)(product(x, gate), product(x, up))
    return product(inner, down)


def _compact_swiglu(
    x: jax.Array, taken: jax.Array, weights: list[jax.Array], most: int
) -> jax.Array:
    """Map slots of which few are taken: rows without empty ones, and back.

    Args:
        x: `[B, E, n, C]`.
        taken: bool `[B, E, n]`.
        weights: of the experts.
        most: how many can be taken at once.
    """
    count = x.shape[1]
    numbers = lax.broadcasted_iota(jnp.int32, taken.shape, 1)
    experts = jnp.where(taken, numbers, jnp.full_like(numbers, count)).reshape(1, -1)
    order, place = _sort(experts)
    sizes = taken.sum((0, 2), dtype=jnp.int32)
    # Empty slots come last; what products make of rows behind the last group is not
    # said, so these are zeros, and nothing is read of their results.
    slots, here = experts.shape[1], lax.iota(jnp.int32, most)
    is_row = here < sizes.sum(dtype=jnp.int32)
    source = jnp.where(is_row, order[:, :most], slots)
    targets = jnp.where(experts < count, place, most)
    rows = _move(x.reshape(1, slots, -1), source, targets[..., None])
    y = _grouped_swiglu(rows[0], sizes, weights)
    return _move(y[None], targets, source[..., None]).reshape(x.shape)
