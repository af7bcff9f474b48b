"""Multiple choice: the answer of a language model is the likeliest continuation.

A row of the file is a question with its choices, one of which is right:

    {"prompt": "The sky is", "choices": [" blue", " made of cheese"], "answer": 0}

Each choice is scored by the logarithm of its probability behind the prompt, and by that
of a byte of it, which does not prefer short ones (Brown et al. 2020, arXiv:2005.14165,
section 2.4).
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.text_encoding import read_text
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.generate import text_codec
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.best import CheckpointStep
from jaxdist.train.load import load

_ROWS: Final = 16
"""Choices a call of the network."""
_EXAMPLE: Final = '{"prompt": "One, two,", "choices": [" three", " red"], "answer": 0}'


@dataclass(frozen=True, kw_only=True)
class Question:
    """A prompt, how it may continue, and which is right."""

    prompt: str
    """How the text begins."""
    choices: tuple[str, ...]
    """How it may continue, at least two."""
    answer: int
    """Place of the right one, from 0."""


@dataclass(frozen=True, kw_only=True)
class ChoiceScore:
    """How often the right choice was the likeliest."""

    checkpoint: int
    """Step of the checkpoint."""
    questions: int
    """Questions in all."""
    correct: int
    """Right ones by the probability of the whole choice."""
    correct_per_byte: int
    """Right ones by that of a byte."""

    @property
    def standard_error(self) -> float:
        """Standard error of the share that is right."""
        share = self.correct / self.questions
        return math.sqrt(share * (1 - share) / self.questions)


def read_questions(path: Path) -> list[Question]:
    """Read questions, one a line.

    Raises:
        BadInput: a line that is none, or no line.
    """
    found = []
    # Not `splitlines`, which also cuts at U+2028 and U+0085: JSON texts may hold these.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            question = Question(
                prompt=row["prompt"],
                choices=tuple(row["choices"]),
                answer=row["answer"],
            )
            texts = question.prompt, *question.choices
            is_right = (
                isinstance(row["choices"], list)
                and all(isinstance(text, str) and text for text in texts)
                and type(question.answer) is int
                and len(question.choices) > 1
                and 0 <= question.answer < len(question.choices)
            )
            values = f"line {number} is {line[:120]}"
        except (ValueError, KeyError, TypeError) as error:
            is_right, values = False, f"line {number}: {type(error).__name__}: {error}"
        if not is_right:
            raise BadInput(
                f"line {number} of {path} is no question",
                rule="a line has a prompt, two choices or more, none of them empty, "
                "and the place of the right one, from 0",
                values=values,
                remedy=_EXAMPLE,
            )
        found.append(question)
    if not found:
        raise BadInput(
            f"no questions in {path}",
            rule="--choices is a file with a question a line",
            remedy=_EXAMPLE,
        )
    return found


def score_choices(
    folder: RunFolder,
    questions: Sequence[Question],
    *,
    checkpoint: CheckpointStep = None,
    trust: bool = False,
) -> ChoiceScore:
    """Let a run answer questions.

    Args:
        folder: the run.
        questions: what is asked.
        checkpoint: its step, `best`, or None for the newest.
        trust: whether any module that the files of the run name is imported.

    Raises:
        BadInput: the run is no language model, or a choice has no room in its window.
    """
    manifest = reader.find_manifest(folder.checkpoints, checkpoint)
    codec = text_codec(folder, manifest)
    window = int(manifest.about["recipe"]["settings"]["context"])
    rows: list[tuple[list[int], int]] = []
    for question in questions:
        start = codec.encode(question.prompt)
        for choice in question.choices:
            # Encoded with its prompt, as the text would be: a tokenizer may join the
            # end of one with the beginning of the other.
            whole = codec.encode(question.prompt + choice)
            # A tokenizer may join the choice to the last token of the prompt: that one
            # is scored.
            count = max(len(whole) - len(start), 1)
            if count > window:
                raise BadInput(
                    "a choice is longer than the network's window",
                    rule="a choice has at most data.context tokens",
                    values=f"{choice[:40]!r} has {count}, data.context = {window}",
                    remedy="shorter choices, or a run with a larger data.context",
                )
            # As many as fit: a window, and one more that is only a target.
            rows.append((whole[-window - 1 :], count))

    # Without 64 bit jax would read float64 leaves as float32.
    is_wide = any(leaf.dtype == "float64" for leaf in manifest.leaves.values())
    jax.config.update("jax_enable_x64", is_wide)
    network, _ = load(folder.path, manifest.step, trust=trust)
    logs = iter([*_log_probabilities(network, rows, window)])
    correct = correct_per_byte = 0
    for question in questions:
        own = np.array([next(logs) for _ in question.choices])
        sizes = [len(choice.encode()) for choice in question.choices]
        correct += int(own.argmax() == question.answer)
        correct_per_byte += int((own / sizes).argmax() == question.answer)
    return ChoiceScore(
        checkpoint=manifest.step,
        questions=len(questions),
        correct=correct,
        correct_per_byte=correct_per_byte,
    )


def _log_probabilities(
    network: nnx.Module, rows: Sequence[tuple[list[int], int]], window: int
) -> Iterator[float]:
    """Yield the logarithm of the probability of the last tokens of each row."""
    graph, state = nnx.split(network)

    @jax.jit
    def score(state: Any, tokens: jax.Array, counts: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, state)(tokens[:, :-1])
        # In float32 or float64, whatever the network computes in.
        logs = jax.nn.log_softmax(logits.astype(jnp.result_type(float)))
        # [rows, window]
        each = jnp.take_along_axis(logs, tokens[:, 1:, None], -1)[..., 0]
        places = jnp.arange(each.shape[1])
        # Neither the prompt nor the padding counts.
        asked = (places >= counts[:, :1]) & (places < counts[:, 1:])
        return jnp.where(asked, each, jnp.zeros_like(each)).sum(-1)

    for first in range(0, len(rows), _ROWS):
        part = rows[first : first + _ROWS]
        # One shape for all, so that it is compiled once; no token sees the padding.
        tokens = np.zeros((_ROWS, window + 1), np.int32)
        bounds = np.zeros((_ROWS, 2), np.int32)
        for row, (text, count) in enumerate(part):
            tokens[row, : len(text)] = text
            bounds[row] = len(text) - 1 - count, len(text) - 1
        found = np.asarray(score(state, jnp.asarray(tokens), jnp.asarray(bounds)))
        yield from found[: len(part)].tolist()
