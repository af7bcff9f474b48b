"""Evaluation of a checkpoint sample by sample: labels confused, worst samples, text.

An evaluation of a run has sums alone. What a report shows of single samples is computed
afterwards from a checkpoint, on one device, and kept in the run folder as JSON.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.core.validation import json_text
from jaxdist.input.registry import open_data
from jaxdist.input.sample_validation import check_source
from jaxdist.input.sources import Arrays
from jaxdist.launch.config import Experiment
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import read_trusted_config
from jaxdist.launch.run_folder.sample_evaluation import (
    LabelCount,
    SampleEvaluation,
    ScoredSample,
    TextSample,
    read_sample_evaluation,
)
from jaxdist.launch.training.generate import (
    CharacterCodec,
    DocumentCodec,
    generate_text,
    text_codec,
)
from jaxdist.launch.training.job.batch_spec import feature_spec
from jaxdist.launch.training.job.job import objective_of
from jaxdist.launch.training.mask_evaluation import evaluate_masks
from jaxdist.launch.training.pictures import encode_picture
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.best import CheckpointStep
from jaxdist.train.generate import Sampling
from jaxdist.train.load import load
from jaxdist.train.objective import Classification, NextToken, Objective
from jaxdist.train.segmentation import Segmentation

_MAX_WORST: Final = 14
"""Samples of the highest loss that are kept."""
_BATCH: Final = 64
"""Samples a call of the network."""
_PROMPT, _GENERATED = 32, 200
"""Most characters of a prompt out of the held-out text, and of what follows it."""


def write_sample_evaluation(
    folder: RunFolder,
    *,
    samples: int,
    checkpoint: CheckpointStep = None,
    trust: bool = False,
) -> None:
    """Evaluate a checkpoint sample by sample into the run folder, or say why not.

    What is there of the same checkpoint and number of samples stays.

    Args:
        folder: the run.
        samples: most samples to look at.
        checkpoint: its step; None takes the newest.
        trust: whether any module that the files of the run name is imported.
    """
    step = 0
    try:
        step = reader.find_manifest(folder.checkpoints, checkpoint).step
        kept = read_sample_evaluation(folder.sample_evaluation)
        if kept is not None and (kept.checkpoint, kept.asked) == (step, samples):
            return
        config = read_trusted_config(folder, trust=trust).resolved.config
        found = _evaluate(config, folder, samples, step, trust)
    except BadInput as error:
        reason = f"{error.what}: {error.values}" if error.values else error.what
        # Asked for 0: it never counts as kept, and the next call tries again.
        found = SampleEvaluation(checkpoint=step, asked=0, reason=reason)
    except Exception as error:  # data and networks of one's own may raise anything
        first, *_ = str(error).splitlines() or [""]
        reason = f"{type(error).__name__}: {first}"
        found = SampleEvaluation(checkpoint=step, asked=0, reason=reason)
    write_atomic(folder.sample_evaluation, json_text(asdict(found)) + "\n")


def _evaluate(
    config: Experiment, folder: RunFolder, samples: int, step: int, trust: bool
) -> SampleEvaluation:
    objective = objective_of(config)
    kinds = Classification, NextToken, Segmentation
    if not isinstance(objective, kinds):
        raise BadInput(
            "samples are shown of networks that classify images or their pixels, and "
            "of language models",
            values=f"{config.model.name} is trained with {type(objective).__name__}",
        )
    _, test = open_data(config.data, feature_spec(config))
    test = check_source(test)
    if isinstance(objective, NextToken):
        manifest = reader.find_manifest(folder.checkpoints, step)
        # The windows of the held-out text are wherever a text may begin.
        ids = np.linspace(0, len(test) - 1, min(2, len(test))).astype(np.int64)
        texts = _texts(text_codec(folder, manifest), test.get(np.unique(ids)))
        cuts = [min(_PROMPT, len(text) // 2) for text in texts]
        step, written = generate_text(
            folder,
            [text[:cut] for text, cut in zip(texts, cuts, strict=True)],
            max_tokens=_GENERATED,
            sampling=Sampling(temperature=0.8),
            checkpoint=step,
            trust=trust,
        )
        found = [
            TextSample(prompt=text[:cut], generated=said, written=text[cut:])
            for text, cut, said in zip(texts, cuts, written, strict=True)
        ]
        return SampleEvaluation(
            checkpoint=step, asked=samples, held_out=len(test), texts=found
        )
    if isinstance(objective, Segmentation):
        return evaluate_masks(
            config,
            folder.path,
            objective,
            test,
            samples=samples,
            step=step,
            trust=trust,
        )
    # Evenly, since held-out samples may lie sorted by label.
    count = min(samples, len(test))
    ids = np.unique(np.linspace(0, len(test) - 1, count).astype(np.int64))
    with jax.enable_x64(config.precision == "float64"):
        network, _ = load(folder.path, step, trust=trust)
        columns = _classify(network, objective, test, ids)
    pairs = Counter(zip(columns["label"].tolist(), columns["predicted"].tolist()))
    order = np.argsort(-columns["loss"], kind="stable")[:_MAX_WORST]
    pictures = test.get(ids[order])["image"]
    return SampleEvaluation(
        checkpoint=step,
        asked=samples,
        samples=len(ids),
        held_out=len(test),
        class_names=list(getattr(test, "class_names", ())),
        confusion=[
            LabelCount(label=label, predicted=predicted, samples=count)
            for (label, predicted), count in sorted(pairs.items())
        ],
        worst=[
            ScoredSample(
                id=int(ids[row]),
                label=int(columns["label"][row]),
                predicted=int(columns["predicted"][row]),
                loss=float(columns["loss"][row]),
                probability=float(np.exp(-columns["loss"][row])),
                picture=encode_picture(picture),
            )
            for row, picture in zip(order, pictures)
        ],
    )


def _texts(codec: CharacterCodec | DocumentCodec, windows: Arrays) -> list[str]:
    """Return the text of each window, of the first of several documents."""
    tokens = windows["tokens"]
    first = np.ones_like(tokens, bool)
    if "segments" in windows:
        first = windows["segments"] == 0
    return [codec.decode(row[own].tolist()) for row, own in zip(tokens, first)]


def _classify(
    network: nnx.Module, objective: Objective, test: Any, ids: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Return label, prediction and loss of samples, [n] each."""
    # Weights as an argument: closed over they would be constants of the program.
    graph, state = nnx.split(network)
    dtype = jnp.result_type(float)

    @jax.jit
    def evaluate(state: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        outputs = nnx.merge(graph, state)(*objective.model_inputs(batch))
        losses = objective.losses(outputs, batch)
        return {"predicted": outputs.argmax(-1), "loss": losses}

    found: dict[str, list[NDArray[Any]]] = {"label": [], "predicted": [], "loss": []}
    for begin in range(0, len(ids), _BATCH):
        part = ids[begin : begin + _BATCH]
        # The last batch is filled up, so that all have one shape.
        read = test.get(np.resize(part, min(_BATCH, len(ids))))
        batch = {
            "image": jnp.asarray(read["image"], dtype),
            "label": jnp.asarray(read["label"], jnp.int32),
        }
        for key, column in {**evaluate(state, batch), "label": batch["label"]}.items():
            found[key].append(np.asarray(column)[: len(part)])
    columns = {key: np.concatenate(parts) for key, parts in found.items()}
    # A network that has diverged is drawn as well: its losses are large numbers.
    loss = np.nan_to_num(columns["loss"].astype(np.float64), nan=1e30, posinf=1e30)
    return {**columns, "loss": loss}
