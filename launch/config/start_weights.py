"""`weights=PATH`: which network the weights are of that a run starts from.

A folder of Hugging Face says it in `config.json`, a run in its lock file. Both are read
without jax, so that a plan or a list of settings needs no weights.
"""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text_encoding import read_text
from jaxdist.core.validation import parse_json
from jaxdist.models.pretrained.config_json import (
    CONFIG_FILE,
    check_typed_settings,
    model_settings,
    read_config_json,
)

if TYPE_CHECKING:
    from jaxdist.launch.config.experiment import Experiment

_RUN_FILE = "config.lock.json"


def weights_folder(weights: str, runs: str) -> tuple[Path, bool]:
    """Return the folder that `weights` names, and whether it is that of a run.

    Args:
        weights: a folder of Hugging Face, the folder of a run, or a run's name.
        runs: the folder of all runs.
    """
    for path in (Path(weights), Path(runs, weights)):
        if (path / _RUN_FILE).is_file():
            return path, True
        if (path / CONFIG_FILE).is_file():
            return path, False
    return Path(weights), False


def weights_overrides(config: "Experiment", typed: Collection[str]) -> dict[str, Any]:
    """Return the keys that a configuration's weights set; none without weights.

    Args:
        config: with `weights`, a folder of Hugging Face or a run.
        typed: keys that were set on the command line.

    Raises:
        BadInput: there is no such folder, or a typed setting is not that of the
            weights.
    """
    if not config.weights:
        return {}
    path, is_run = weights_folder(config.weights, config.run.dir)
    if is_run:
        found = _run_settings(path)
        if "lora.rank" in typed and not config.lora.rank:
            # Its other settings would be refused beside it, and not what was meant.
            found = {k: x for k, x in found.items() if not k.startswith("lora.")}
    else:
        _check_name(path, Path(config.run.dir))
        tree = read_config_json(path)
        own = {
            key.removeprefix("model."): getattr(config.model, key[6:])
            for key in typed
            if key.startswith("model.")
        }
        check_typed_settings(tree, own, "without weights= sizes are free")
        found = {f"model.{key}": value for key, value in model_settings(tree).items()}
    # Windows of an experiment may be longer than the network's own.
    context = found.get("model.context")
    if context and config.data.context > context:
        found["data.context"] = context
    return found


def _check_name(path: Path, runs: Path) -> None:
    """Refuse weights that are nowhere, where a run has nearly their name."""
    names = [file.parent.name for file in runs.glob(f"*/{_RUN_FILE}")]
    near = did_you_mean(str(path), names)
    if near and not path.exists():
        raise BadInput(
            f"there is no {path}",
            rule="weights are a run of jaxdist or a folder of Hugging Face",
            values=f"weights = {path}; runs in {runs}/: {', '.join(sorted(names))}",
            remedy=f"weights={near}",
        )


def _run_settings(path: Path) -> dict[str, Any]:
    """Return what a run says of its network; what its data decided is left open."""
    try:
        values = parse_json(read_text(path / _RUN_FILE))["values"]
        # Adapters of a run are a part of its network.
        adapted = values.get("lora.rank", {"value": 0})["value"]
        parts = ("model.", "lora.") if adapted else ("model.",)
        return {
            key: tuple(row["value"]) if key == "lora.targets" else row["value"]
            for key, row in values.items()
            if key.startswith(parts) and row["value"] is not None
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path / _RUN_FILE} cannot be read",
            rule="weights are a run of jaxdist or a folder of Hugging Face",
            values=repr(error)[:80],
            remedy="the file as it was, from a copy",
        ) from error
