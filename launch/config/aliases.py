"""Other names of configuration keys: older ones, and short ones that people type."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.plan.aliases import PLAN_KEY_ALIASES

KEY_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{f"plan.{old}": f"plan.{new}" for old, new in PLAN_KEY_ALIASES.items()},
        "data.damaged": "data.corrupt_images",
        "data.store": "data.cache",
        "data.store_dir": "data.cache_dir",
        "run.hang_s": "run.hang_timeout_s",
        "run.straggler_every": "run.straggler_interval",
    }
)
"""New key by old key."""

# A table, and not whatever ends so: a key that is added later would make `lr` mean two
# things, and scripts would stop.
SHORT_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "batch": "data.batch",
        "batch_size": "data.batch",
        "bs": "data.batch",
        "dataset": "data.name",
        "grad_accum": "optim.accumulate",
        "learning_rate": "optim.lr",
        "lora_alpha": "lora.alpha",
        "lora_rank": "lora.rank",
        "lr": "optim.lr",
        "momentum": "optim.momentum",
        "num_epochs": "epochs",
        "optimizer": "optim.name",
        "target_modules": "lora.targets",
        "wd": "optim.weight_decay",
        "weight_decay": "optim.weight_decay",
    }
)
"""Key by the name that other programs give it; the last of several holds."""

STEP_KEYS: Final = ("max_steps", "num_steps", "steps", "total_steps", "train_steps")
"""Names of a number of steps, which is no setting: a run ends by its epochs."""


def current_key(key: str) -> str:
    """Return the name that a key has now.

    >>> current_key("data.store"), current_key("data.batch")
    ('data.cache', 'data.batch')
    """
    return KEY_ALIASES.get(key, key)


def old_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the new name of each key that is given under its old one.

    Raises:
        BadInput: a key under both names.

    >>> old_keys(["data.store", "data.batch"])
    {'data.store': 'data.cache'}
    """
    given = set(keys)
    found = {key: KEY_ALIASES[key] for key in KEY_ALIASES if key in given}
    for old, new in found.items():
        if new in given:
            raise both_names_error(old, new)
    return found


def rename_overrides(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return overrides under the names that keys have now, and those that were renamed.

    Args:
        words: `key.sub=value`; any other word stays as it is.

    Raises:
        BadInput: a key under both names.

    >>> rename_overrides(["data.store=disk", "seed=1"])
    (['data.cache=disk', 'seed=1'], {'data.store': 'data.cache'})
    """
    pairs = [word.partition("=") for word in words]
    renamed = old_keys(key for key, equals, _ in pairs if equals)
    changed = [
        f"{renamed.get(key, key)}{equals}{value}" for key, equals, value in pairs
    ]
    return changed, renamed


def steps_error(word: str, batch: int | str | None) -> BadInput:
    """Return the refusal of a number of steps.

    Args:
        word: the override: `max_steps=500`.
        batch: samples of a step, where they are known.
    """
    return BadInput(
        f"no key {word.partition('=')[0]}",
        rule="a run ends after epochs, and a part of one will do: "
        "epochs = steps x data.batch / samples",
        values=word if batch is None else f"{word}, data.batch = {batch}",
        remedy="epochs=0.5; `jaxdist schedule EXPERIMENT` says how many steps that is",
    )


def both_names_error(old: str, new: str) -> BadInput:
    """Return the refusal of something that is given under its old and its new name."""
    return BadInput(
        f"{old} and {new} are one",
        rule=f"{old} is the old name of {new}, which is given once",
        values=f"{old} and {new}",
        remedy=f"without {old}",
    )
