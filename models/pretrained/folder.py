"""A folder of weights of Hugging Face, held against a network and read in slices.

Every process reads of each tensor what its own devices hold, and nothing else: a leaf
that is sharded over 8 hosts is 8 different slices of one file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import jax
import numpy as np

from jaxdist.core.errors import BadInput, raise_all
from jaxdist.core.safetensors_file import StoredTensor, read_header
from jaxdist.core.text_encoding import read_text
from jaxdist.core.validation import parse_json
from jaxdist.models.pretrained.config_json import read_config_json
from jaxdist.models.pretrained.tensor_names import (
    LeafTensor,
    is_ignored,
    leaf_tensors,
)

WEIGHTS_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
COMPANION_FILES: Final = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"),
    *("chat_template.jinja", "generation_config.json"),
)
"""Files beside the weights that go where the network goes."""
_FLOATS: Final = ("F64", "F32", "F16", "BF16")
_SHOWN: Final = 4


@dataclass(frozen=True, kw_only=True)
class PretrainedFolder:
    """The weights of a folder; nothing but the headers of its files is read."""

    path: Path
    """The folder."""
    config: Mapping[str, Any]
    """Its `config.json`."""
    tensors: Mapping[str, StoredTensor]
    """All tensors of its files by name."""
    nonfinite: dict[str, int] = field(default_factory=dict)
    """Numbers that were read and are not finite, by tensor."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the headers of a folder.

        Raises:
            BadInput: a file is missing, damaged or cut off.
        """
        path = path if path.is_dir() else path.parent
        config = read_config_json(path)
        tensors: dict[str, StoredTensor] = {}
        errors: list[BadInput] = []
        for file in _weight_files(path):
            try:
                tensors |= read_header(file)
            except BadInput as error:
                errors.append(error)
        raise_all(errors)
        return cls(path=path, config=config, tensors=tensors)

    @property
    def dtypes(self) -> dict[str, str]:
        """Dtype of each tensor by name, as an export gives it back."""
        return {name: one.dtype for name, one in sorted(self.tensors.items())}

    def check(self, model: str, leaves: Mapping[str, Any]) -> dict[str, LeafTensor]:
        """Hold the tensors against a network, and say where each leaf is.

        Args:
            model: the network's name in the registry.
            leaves: its leaves by name, with their shapes.

        Raises:
            BadInput: tensors that are missing, left over, or of another shape or kind;
                all of them together.
        """
        found = leaf_tensors(model, leaves, self.tensors)
        wanted = {
            name: one.tensor_shape(tuple(leaves[leaf].shape))
            for leaf, one in found.items()
            for name in one.tensors(tuple(leaves[leaf].shape))
        }
        missing = [name for name in wanted if name not in self.tensors]
        # As bad as a missing one: the network of the file computes something with it.
        extra = [
            name
            for name in self.tensors
            if name not in wanted and not is_ignored(name, wanted)
        ]
        there = {name: shape for name, shape in wanted.items() if name in self.tensors}
        apart = [
            f"{name} is {[*self.tensors[name].shape]}, {[*shape]} in the network"
            for name, shape in there.items()
            if self.tensors[name].shape != shape
        ]
        kinds = [
            f"{name} is {self.tensors[name].dtype}"
            for name in there
            if self.tensors[name].dtype not in _FLOATS
        ]
        again = "config.json as it belongs to these files, or the other way round"
        refused = (
            (missing, "lack tensors of the network", again),
            (extra, "have tensors that the network has not", again),
            (apart, "have tensors of other shapes", again),
            (kinds, "have tensors that are no real numbers", "weights in bfloat16"),
        )
        raise_all(
            [
                BadInput(
                    f"the weights in {self.path} {what}",
                    rule="each tensor is one of the network's, in its shape",
                    values=_some(names),
                    remedy=remedy,
                )
                for names, what, remedy in refused
                if names
            ]
        )
        return found

    def read(self, place: LeafTensor, target: Any) -> jax.Array:
        """Read a leaf into its sharding, in the dtype of the target.

        Float32 holds every bfloat16 and float16; a narrower target rounds to nearest.

        Args:
            place: where it is, of `check`.
            target: its shape and dtype, with a sharding.
        """
        shape = tuple(target.shape)
        names, held = place.tensors(shape), self.nonfinite

        def load_tensor(name: str, index: tuple[slice, ...]) -> np.ndarray:
            part = self.tensors[name].read(index)
            bad = part.size - int(np.isfinite(part).sum())
            if bad:
                held[name] = held.get(name, 0) + bad
            return part.T if place.transposed else part

        def load(index: tuple[slice, ...]) -> np.ndarray:
            # Of experts a device reads its own.
            own = names[index[0]] if place.is_stacked else names
            inner = place.index(index, shape)
            parts = [load_tensor(name, inner) for name in own]
            part = np.stack(parts) if place.is_stacked else parts[0]
            return np.ascontiguousarray(part, dtype=target.dtype)

        # The cache lives as long as this call, so a host keeps one leaf of its own at
        # most.
        return jax.make_array_from_callback(shape, target.sharding, _once(load))


def _once(load: Callable[[Any], np.ndarray]) -> Callable[[Any], np.ndarray]:
    """Return a reader that reads a slice once for all devices that hold it."""
    kept: dict[tuple[tuple[Any, Any], ...], np.ndarray] = {}

    def loaded(index: tuple[slice, ...]) -> np.ndarray:
        # Slices have no hash before Python 3.12.
        key = tuple((one.start, one.stop) for one in index)
        if key not in kept:
            kept[key] = load(index)
        return kept[key]

    return loaded


def _weight_files(path: Path) -> list[Path]:
    """Return the files with weights of a folder: one, or those of its index."""
    index = path / INDEX_FILE
    if not index.is_file():
        if not (path / WEIGHTS_FILE).is_file():
            others = sorted(p.name for p in path.glob("*.bin"))
            raise BadInput(
                f"no weights in {path}",
                rule=f"weights are {WEIGHTS_FILE}, or several files with {INDEX_FILE}",
                values=f"it has {', '.join(others[:_SHOWN]) or 'neither'}",
                remedy="AutoModelForCausalLM.from_pretrained(FOLDER)"
                ".save_pretrained(NEW) writes them",
            )
        return [path / WEIGHTS_FILE]
    try:
        tree = parse_json(read_text(index))
        # Which tensor is in which file is read from the headers: only the files matter.
        names = sorted({str(name) for name in tree["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{index} cannot be read",
            rule="an index names the file of each tensor: weight_map",
            values=repr(error)[:80],
            remedy="copy or download the file again",
        ) from error
    # A name that is a path would lead out of the folder.
    gone = [n for n in names if Path(n).name != n or not (path / n).is_file()]
    if gone:
        raise BadInput(
            f"files of the weights in {path} are missing",
            rule=f"each file that {INDEX_FILE} names is in its folder",
            values=_some(gone),
            remedy="copy or download them again",
        )
    return [path / name for name in names]


def _some(names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
