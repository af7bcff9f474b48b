"""Binding: writes names, roles, splits and noise of one step into a model's layers."""

import zlib
from collections.abc import Mapping
from types import MappingProxyType

import jax
from flax import nnx

from jaxdist.core.plan import ContextForm
from jaxdist.layers.dropout import Dropout, Noise
from jaxdist.layers.halo import Split, local_samples
from jaxdist.layers.spatial_gather import Gather, insert_gather
from jaxdist.layers.tensor_role import Roles, role_key


def bind(
    model: nnx.Module,
    key: jax.Array | None = None,
    sample_ids: jax.Array | None = None,
    roles: Roles = MappingProxyType({}),
    splits: Mapping[str, Split] = MappingProxyType({}),
    gather_block: str = "",
    gather_class: type[Gather] = Gather,
    platform: str = "",
    product: str = "",
) -> None:
    """Write each layer's path into its scope; give it its role, split and noise.

    Args:
        model: changed in place; a fresh merge inside the step.
        key: random key of (seed, step) in training; None where nothing is random.
        sample_ids: sample ids of this device's samples, int32 [B].
        roles: what layers do with the tensor axis.
        splits: how the images of layers are cut, where not as far as they go and
            with real rows alone.
        gather_block: block before which images are gathered; empty gathers none.
        gather_class: what is put there.
        platform: whose kernel layers with a field `attention_platform` use; empty: that
            of the devices of this process.
        product: use of the layer (`role_key`) whose logits are not multiplied out.
    """
    # First, so that the gather is a layer like others and gets its scope and split.
    if gather_block:
        insert_gather(model, gather_block, gather_class)
    for path, layer in nnx.iter_modules(model):
        name = ".".join(map(str, path))
        # Layers of flax have no such fields and stay as they are.
        if hasattr(layer, "scope"):
            layer.scope = name
        if name in roles and hasattr(layer, "role"):
            layer.role = roles[name]
        if hasattr(layer, "attended"):
            layer.attended = roles.get(role_key(name, "attend"))
        if name in splits and hasattr(layer, "split"):
            layer.split = splits[name]
        if hasattr(layer, "keeps_choices"):
            layer.keeps_choices = key is not None
        if platform and hasattr(layer, "attention_platform"):
            layer.attention_platform = platform
        if isinstance(layer, Dropout) and key is not None and sample_ids is not None:
            # The path, not a counter: a stage that holds half the model draws alike.
            # Python's own hash of a text differs from process to process.
            own = jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)
            mine = local_samples(sample_ids, layer.split.samples)
            layer.noise = nnx.data(Noise(own, mine))
    defer_logits(model, product)


def defer_logits(model: nnx.Module, use: str) -> None:
    """Have one layer return its outputs as a product; in place.

    Args:
        model: a fresh merge inside the step.
        use: the layer's use (`role_key`); empty: no layer.
    """
    for path, layer in nnx.iter_modules(model) if use else ():
        if hasattr(layer, "defers_logits"):
            name = ".".join(map(str, path))
            uses = [role_key(name, method) for method in ("__call__", "attend")]
            layer.defers_logits = use in uses


def bind_loss_shares(model: nnx.Module, shares: int) -> None:
    """Tell layers with a loss of their own into how many shares the loss is divided.

    Args:
        model: changed in place; a fresh merge inside the step.
        shares: of all devices and microbatches whose gradients are added.
    """
    for _, layer in nnx.iter_modules(model):
        if hasattr(layer, "loss_shares"):
            layer.loss_shares = shares


def bind_context_form(model: nnx.Module, form: ContextForm) -> None:
    """Tell layers with a field `context_form` how attention reads other tokens.

    Args:
        model: changed in place; a fresh merge inside the step.
        form: as `plan.context` has it.
    """
    for _, layer in nnx.iter_modules(model):
        if hasattr(layer, "context_form"):
            layer.context_form = form
