"""Resolving: an experiment and the words behind it become one checked configuration."""

from collections.abc import Sequence

from jaxdist.core.errors import BadInput, did_you_mean, raise_all
from jaxdist.launch.config.overrides import apply_config_overrides, override_errors
from jaxdist.launch.config.provenance import ResolvedConfig, setting_sources
from jaxdist.launch.config.recipes import recipe_overrides
from jaxdist.launch.config.registry import experiment_names, load_experiment
from jaxdist.launch.config.tree import replace_values
from jaxdist.launch.config.validation import validate_config


def resolve_config(name_or_path: str, overrides: Sequence[str] = ()) -> ResolvedConfig:
    """Return the configuration that `jaxdist train SOURCE WORDS` runs.

    Args:
        name_or_path: name of an experiment, or path of a file that has one.
        overrides: overrides, `key.sub=value`.

    Raises:
        BadInput: everything that is wrong with the experiment, the words and their
            combination, together.

    >>> resolve_config("digits", ["optim.lr=0.3"]).describe("optim.lr")
    'optim.lr = 0.3 (command line)'
    """
    try:
        experiment = load_experiment(name_or_path)
    except BadInput as error:
        meant = did_you_mean(name_or_path, experiment_names()) or experiment_names()[0]
        raise_all([error, *override_errors(overrides, experiment=meant)])
        raise
    config, typed = apply_config_overrides(
        experiment, overrides, experiment=name_or_path
    )
    if recipe := recipe_overrides(config):
        # Below the command line, above the experiment: words are read once more.
        config, _ = apply_config_overrides(
            replace_values(experiment, recipe), overrides, experiment=name_or_path
        )
        typed += recipe if "recipe" in typed else ()
    resolved = ResolvedConfig(
        experiment=name_or_path, config=config, sources=setting_sources(config, typed)
    )
    validate_config(resolved)
    return resolved
