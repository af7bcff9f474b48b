"""A checkpoint of a run as a folder of Hugging Face, a leaf at a time."""

import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.core.files import FolderMarker, delete_folder, marker_path, write_atomic
from jaxdist.core.records import parse_record
from jaxdist.core.safetensors_file import DTYPES, TensorWriter
from jaxdist.core.validation import json_text
from jaxdist.launch.run_folder.folder import RunFolder, check_writable
from jaxdist.launch.training.start_weights import PRETRAINED_NOTE
from jaxdist.models.config import ModelConfig
from jaxdist.models.pretrained.config_json import CONFIG_FILE, config_json
from jaxdist.models.pretrained.folder import (
    COMPANION_FILES,
    INDEX_FILE,
    WEIGHTS_FILE,
)
from jaxdist.models.pretrained.tensor_names import TENSOR_NAMES, leaf_tensors
from jaxdist.models.registry import fill_sizes
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.best import CheckpointStep
from jaxdist.train.checkpoint.manifest import CheckpointManifest
from jaxdist.train.lora import (
    LoraConfig,
    adapter_kernels,
    is_adapter,
    merge_adapter,
)

ExportDtype = Literal["float32", "bfloat16", "float16"]
_DTYPE_CODES: Final = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
}
_TensorShapes = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, kw_only=True)
class ExportedFolder:
    """What was written."""

    path: Path
    """The folder."""
    checkpoint: int
    """Step of the checkpoint."""
    tensors: int
    """Number of tensors."""
    nbytes: int
    """Their bytes."""
    files: tuple[str, ...]
    """All files, sorted."""


def export_weights(
    run: RunFolder,
    out: Path,
    *,
    checkpoint: CheckpointStep = None,
    dtype: ExportDtype | None = None,
    max_file_bytes: int,
) -> ExportedFolder:
    """Write a checkpoint as a folder that transformers reads.

    Args:
        run: the run; averaged weights are taken where it has them.
        out: folder to make.
        checkpoint: its step, `best`, or None for the newest.
        dtype: of all tensors; None: those that each was imported with, else float32.
        max_file_bytes: of one file of weights.

    Raises:
        BadInput: no such checkpoint, a damaged one, a network that has no name there,
            or a folder that is there; nothing is left of it.
    """
    manifest = reader.find_manifest(run.checkpoints, checkpoint)
    settings = manifest.about.get("recipe", {}).get("settings", {})
    if settings.get("name") not in TENSOR_NAMES:
        raise BadInput(
            f"{run.name} is no network of Hugging Face",
            rule=f"networks that are exported are {', '.join(TENSOR_NAMES)}",
            values=f"model.name = {settings.get('name')}",
            remedy=f"load({run.name!r}) gives the network in Python",
        )
    check_writable(out, key="OUT")
    if out.exists():
        raise BadInput(
            f"{out} is there already",
            rule="weights are exported into a folder that is new",
            values=str(out),
            remedy=f"another OUT, such as {out}-2",
        )
    # Sizes that were left to a preset are written into config.json as well.
    model = fill_sizes(ModelConfig(**settings))
    leaves = _leaf_names(manifest)
    # An import has noted the dtype of each tensor, which an export gives back.
    note = manifest.about.get(PRETRAINED_NOTE) or {}
    before: Mapping[str, str] = note.get("dtypes") or {}
    places = leaf_tensors(model.name, leaves, before or None)
    shapes: _TensorShapes = {}
    for leaf, stored in leaves.items():
        metadata = manifest.leaves[stored]
        for tensor in places[leaf].tensors(metadata.shape):
            code = _DTYPE_CODES[dtype] if dtype else before.get(tensor, "F32")
            shapes[tensor] = code, places[leaf].tensor_shape(metadata.shape)
    # config.json has room for one dtype: that of most tensors.
    codes = [code for code, _ in shapes.values()]
    common = max(set(codes), key=codes.count)
    spoken = next(name for name, code in _DTYPE_CODES.items() if code == common)
    # Made before the tensors are written, which takes long: it may refuse the network.
    tree = config_json(model, note.get("config"), spoken)
    # Built beside its place and renamed: a folder is there whole or not at all.
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.part")
    marker = FolderMarker.create(marker_path(part))
    try:
        part.mkdir()
        writers = _make_files(part, shapes, max_file_bytes)
        folder = run.checkpoints / str(manifest.step)
        names = {stored: leaf for leaf, stored in leaves.items()}
        adapters = _read_adapters(folder, manifest)
        for stored, array in _read(folder, manifest, names):
            place, adapter = places[names[stored]], adapters.get(names[stored])
            whole = merge_adapter(array, *adapter) if adapter else array
            rows = whole if place.is_stacked else (whole,)
            for tensor, row in zip(place.tensors(whole.shape), rows, strict=True):
                # Most kernels are [out, in] there and [in, out] here.
                turned = row.T if place.transposed else row
                _check_range(tensor, turned, shapes[tensor][0])
                # Parts of one tensor lie beside each other along its last dim, as
                # query, key and value of GPT-2.
                column = place.part * (turned.shape or (1,))[-1]
                writers[tensor].write(tensor, turned, column)
        write_atomic(part / CONFIG_FILE, json_text(tree, indent=2) + "\n")
        for name in COMPANION_FILES:
            if (run.pretrained / name).is_file():
                shutil.copyfile(run.pretrained / name, part / name)
        part.rename(out)
    except reader.CorruptCheckpointError as damage:
        raise BadInput(
            f"checkpoint {manifest.step} of {run.name} is damaged",
            rule="every leaf is what was saved",
            values=str(damage),
            remedy=f"jaxdist ckpt verify {run.name}; --checkpoint N takes another",
        ) from damage
    finally:
        # Once it is renamed there is nothing to delete.
        delete_folder(part, marker)
        marker.release()
    return ExportedFolder(
        path=out,
        checkpoint=manifest.step,
        tensors=len(shapes),
        nbytes=sum(_nbytes(*one) for one in shapes.values()),
        files=tuple(sorted(path.name for path in out.iterdir())),
    )


def _leaf_names(manifest: CheckpointManifest) -> dict[str, str]:
    """Return the name in a checkpoint of each leaf of the network, averaged or not."""
    averaged = any(name.startswith("average/") for name in manifest.leaves)
    roots = ("average/params/", "average/stats/") if averaged else ("params/", "stats/")
    return {
        name.removeprefix(root): name
        for root in roots
        for name in manifest.leaves
        if name.startswith(root) and name.rpartition("/")[2] in _WEIGHTS
    }


_WEIGHTS: Final = (
    *("kernel", "bias", "scale", "embedding"),
    *("router", "gate", "up", "down"),
)
"""Variables that are weights: dropout has others."""


def _read_adapters(
    folder: Path, manifest: CheckpointManifest
) -> dict[str, tuple[np.ndarray, np.ndarray, float]]:
    """Read the adapters of a checkpoint: A, B and scale by the name of the kernel."""
    lora = manifest.about.get("recipe", {}).get("lora")
    if not lora:
        return {}
    averaged = any(name.startswith("average/") for name in manifest.leaves)
    root = "average/params/" if averaged else "params/"
    scale = parse_record(LoraConfig, lora, "the checkpoint's adapters").scale
    stored = [name for name in manifest.leaves if name.startswith(root)]
    # All that is trained beside them is small: they are held while kernels pass.
    arrays = {
        name.removeprefix(root): array
        for name, array in reader.read_leaves(folder, manifest, prefix=root)
        if is_adapter(name)
    }
    return {
        kernel.removeprefix(root): (
            arrays[a.removeprefix(root)],
            arrays[a.removeprefix(root).removesuffix("a") + "b"],
            scale,
        )
        for a, kernel in adapter_kernels(stored).items()
    }


def _read(
    folder: Path, manifest: CheckpointManifest, names: Mapping[str, str]
) -> Iterator[tuple[str, np.ndarray]]:
    """Read the leaves with these names, each one verified."""
    for root in sorted({name.partition("/")[0] for name in names}):
        for name, array in reader.read_leaves(folder, manifest, prefix=f"{root}/"):
            if name in names:
                yield name, array


def _check_range(tensor: str, array: np.ndarray, code: str) -> None:
    """Refuse numbers that a narrower dtype has no room for."""
    with np.errstate(over="ignore"):
        # The largest alone: if it fits, all do.
        narrow = np.abs(array).max(initial=0).astype(DTYPES[code])
    if not np.isfinite(narrow.astype(np.float64)):
        raise BadInput(
            f"{tensor} does not fit {code}",
            rule="every weight is a finite number in the dtype that is written",
            values=f"largest {np.abs(array).max():g}",
            remedy="--dtype bfloat16 or --dtype float32",
        )


def _nbytes(code: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPES[code].itemsize


def _make_files(
    folder: Path, shapes: _TensorShapes, max_file_bytes: int
) -> dict[str, TensorWriter]:
    """Make the files of all tensors, several with an index where one is too large."""
    groups: list[_TensorShapes] = [{}]
    held = 0
    for name in sorted(shapes):
        size = _nbytes(*shapes[name])
        # A tensor beyond the limit has a file for itself.
        if groups[-1] and held + size > max_file_bytes:
            groups.append({})
            held = 0
        groups[-1][name] = shapes[name]
        held += size
    found: dict[str, TensorWriter] = {}
    files: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05}-of-{len(groups):05}.safetensors"
        file = WEIGHTS_FILE if len(groups) == 1 else file
        writer = TensorWriter(folder / file, group)
        found |= dict.fromkeys(group, writer)
        files |= dict.fromkeys(group, file)
    if len(groups) > 1:
        total = sum(_nbytes(*one) for one in shapes.values())
        tree = {"metadata": {"total_size": total}, "weight_map": files}
        write_atomic(folder / INDEX_FILE, json_text(tree, indent=2) + "\n")
    return found
