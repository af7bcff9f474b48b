"""Resolving: an experiment and the words behind it become one checked configuration."""

from collections.abc import Sequence

from jaxdist.core.errors import BadInput, did_you_mean, raise_all
from jaxdist.launch.config.overrides import apply_config_overrides, override_errors
from jaxdist.launch.config.provenance import ResolvedConfig, setting_sources
from jaxdist.launch.config.recipes import recipe_overrides
from jaxdist.launch.config.registry import experiment_names, load_experiment
from jaxdist.launch.config.tree import replace_values
from jaxdist.launch.config.validation import validate_config


def resolve_config(source: str, words: Sequence[str] = ()) -> ResolvedConfig:
    """Return the configuration that `jaxdist train SOURCE WORDS` runs.

    Args:
        source: name of an experiment, or path of a file that has one.
        words: overrides, `key.sub=value`.

    Raises:
        BadInput: everything that is wrong with the experiment, the words and their
            combination, together.

    >>> resolve_config("digits", ["optim.lr=0.3"]).says("optim.lr")
    'optim.lr = 0.3 (command line)'
    """
    try:
        experiment = load_experiment(source)
    except BadInput as error:
        meant = did_you_mean(source, experiment_names()) or experiment_names()[0]
        raise_all([error, *override_errors(words, source=meant)])
        raise
    config, typed = apply_config_overrides(experiment, words, source=source)
    if recipe := recipe_overrides(config):
        # Below the command line, above the experiment: words are read once more.
        config, _ = apply_config_overrides(
            replace_values(experiment, recipe), words, source=source
        )
        typed += recipe if "recipe" in typed else ()
    resolved = ResolvedConfig(
        source=source, config=config, origins=setting_sources(config, typed)
    )
    validate_config(resolved)
    return resolved
