"""Resolving: an experiment and the words behind it become one checked configuration."""

from collections.abc import Sequence

from jaxdist.core.errors import BadInput, did_you_mean, raise_all
from jaxdist.launch.config.overrides import check_words, override
from jaxdist.launch.config.provenance import ResolvedConfig, origins_of
from jaxdist.launch.config.recipes import changes
from jaxdist.launch.config.registry import experiment_names, load_experiment
from jaxdist.launch.config.tree import with_values
from jaxdist.launch.config.validation import check


def resolve(source: str, words: Sequence[str] = ()) -> ResolvedConfig:
    """Return the configuration that `jaxdist train SOURCE WORDS` runs.

    Args:
        source: name of an experiment, or path of a file that has one.
        words: overrides, `key.sub=value`.

    Raises:
        BadInput: everything that is wrong with the experiment, the words and their
            combination, together.

    >>> resolve("digits", ["optim.lr=0.3"]).says("optim.lr")
    'optim.lr = 0.3 (command line)'
    """
    try:
        experiment = load_experiment(source)
    except BadInput as error:
        meant = did_you_mean(source, experiment_names()) or experiment_names()[0]
        raise_all([error, *check_words(words, source=meant)])
        raise
    config, typed = override(experiment, words, source=source)
    if recipe := changes(config):
        # Below the command line, above the experiment: words are read once more.
        config, _ = override(with_values(experiment, recipe), words, source=source)
        typed += recipe if "recipe" in typed else ()
    resolved = ResolvedConfig(
        source=source, config=config, origins=origins_of(config, typed)
    )
    check(resolved)
    return resolved
