"""What a checkpoint says of held-out samples one by one: `samples.json`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxdist.core.errors import BadInput
from jaxdist.core.records import parse_record
from jaxdist.launch.run_folder.folder import read_json_object


@dataclass(frozen=True, kw_only=True)
class LabelCount:
    """A cell of a confusion matrix."""

    label: int
    predicted: int
    samples: int
    """Samples that have both."""


@dataclass(frozen=True, kw_only=True)
class ScoredSample:
    """A held-out sample with what the network says of it."""

    id: int
    label: int
    predicted: int
    loss: float
    """Cross-entropy, nats."""
    probability: float
    """Of its label."""
    picture: str
    """A PNG in base64."""


@dataclass(frozen=True, kw_only=True)
class TextSample:
    """A piece of held-out text that a language model has gone on with."""

    prompt: str
    generated: str
    written: str
    """What follows the prompt in the text."""


@dataclass(frozen=True, kw_only=True)
class ClassOverlap:
    """Pixels of one class, over all samples that were looked at."""

    label: int
    mask: int
    """In the masks."""
    answer: int
    """In what the network says."""
    both: int
    """In both."""


@dataclass(frozen=True, kw_only=True)
class ScoredMask:
    """A held-out image with its mask, and what the network says of its pixels."""

    id: int
    dice: float
    """Mean Dice of its classes, without the background."""
    wrong: int
    """Pixels that are answered wrong."""
    pixels: int
    """Pixels of the image."""
    plane: int
    """Plane of a volume that is shown, that with most wrong pixels."""
    planes: int
    """Planes of the volume; 1 of an image."""
    picture: str
    """The image, a PNG in base64; so are the following."""
    mask: str
    """Its classes."""
    answer: str
    """What the network says."""
    errors: str
    """The image with wrong pixels in colour."""


@dataclass(frozen=True, kw_only=True)
class SampleEvaluation:
    """A checkpoint evaluated sample by sample: labels, texts, masks, or why none."""

    checkpoint: int
    """Its step."""
    asked: int
    """Samples that were asked for."""
    samples: int = 0
    """Samples that were looked at, evenly out of those held out."""
    held_out: int = 0
    """Samples held out."""
    class_names: Sequence[str] = ()
    """Words of the labels, in their order; empty where the data has none."""
    confusion: Sequence[LabelCount] = ()
    """Labels and predictions that occur together."""
    worst: Sequence[ScoredSample] = ()
    """Samples of the highest loss, the highest first."""
    texts: Sequence[TextSample] = ()
    """Texts, of a language model."""
    overlaps: Sequence[ClassOverlap] = ()
    """Classes of pixels that occur, of a network that segments."""
    masks: Sequence[ScoredMask] = ()
    """Images of the lowest Dice, the lowest first."""
    reason: str = ""
    """Why there is nothing; empty where there is."""


def read_sample_evaluation(path: Path) -> SampleEvaluation | None:
    """Read the file; None where it is missing, damaged or of another version."""
    found = read_json_object(path)
    # It can be computed again: what cannot be used is as good as not there.
    with suppress(BadInput):
        if found is not None:
            return parse_record(SampleEvaluation, found, path.name)
    return None
