"""Synthetic data: random samples, random volumes and films of moving digits.

A sample is a function of its id alone: the same in every run, host and thread. There is
nothing to learn in it; it is for speed, memory and trying a configuration.

Volumes: 3-D maps with numbers to estimate, one `.npz` file a sample.

FOLDER/train/*.npz    FOLDER/test/*.npz    each: image [D, H, W, C], target [n]

Moving digits: clips of handwritten digits on the move, with captions.

Each digit of the digits data set, 8x8 pixels, is filmed twice on a screen of 16x16: 5
frames in which it stays, or moves by one pixel a frame in one of eight directions, in a
field of 12x12. Motion and place are drawn by the digit's id, so the clips are the same
on every machine; held-out clips show held-out handwriting.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, decoder_errors
from jaxdist.input.clips import Clips, Pixels, build_vocabulary, max_caption_length
from jaxdist.input.digits import open_digits
from jaxdist.input.feature_spec import Feature, FeatureSpec
from jaxdist.input.keyed_permutation import bounded_int, hash64
from jaxdist.input.sources import Arrays, SampleIds, Source

_KEY_DOMAIN: Final = 0x53594E5448
"""Keeps these draws apart from those of the order and of augmentation."""


class SyntheticSource:
    """Random samples; a `Source`.

    Args:
        features: the arrays of a sample.
        samples: how many there are.
        first_id: number of the first one, so that two sources share no sample.

    >>> digits = SyntheticSource({"label": Feature(upper_bound=10)}, 100)
    >>> len(digits), digits.get(np.array([5, 7, 5]))["label"].tolist()
    (100, [3, 4, 3])
    """

    def __init__(
        self, features: FeatureSpec, samples: int, *, first_id: int = 0
    ) -> None:
        self._features, self._samples, self._first = dict(features), samples, first_id

    def __len__(self) -> int:
        return self._samples

    def get(self, ids: SampleIds) -> Arrays:
        """Draw samples: int [n] to new arrays [n, ...], float32 or int32."""
        # Features are numbered in the order of their names: a mapping has no order to
        # rely on.
        numbers = ids.astype(np.int64) + self._first
        return {
            name: np.stack(
                [_draw(field, k) for k in hash64(_KEY_DOMAIN, place, numbers)]
            )
            for place, (name, field) in enumerate(sorted(self._features.items()))
        }

    @property
    def fingerprint(self) -> str:
        """Name the samples: all that they are made of."""
        return (
            f"synthetic {sorted(self._features.items())} {self._samples} {self._first}"
        )


def open_synthetic(
    features: FeatureSpec, samples: int
) -> tuple[SyntheticSource, SyntheticSource]:
    """Return `samples` to train on, and an eighth as many others, held out.

    Raises:
        BadInput: nothing is known of what the network reads.
    """
    if not features:
        raise BadInput(
            "synthetic data has no shape",
            rule="synthetic data has the shape that a network of the registry reads",
            values="the network is one of your own",
            remedy="a data set of your own: DataConfig(name=name_of(my_data))",
        )
    # Ids of held-out samples follow those of training: none is in both.
    held_out = max(1, samples // 8)
    return SyntheticSource(features, samples), SyntheticSource(
        features, held_out, first_id=samples
    )


def _draw(field: Feature, seed: np.uint64) -> NDArray[Any]:
    """Draw one array: whole numbers, or reals evenly spread over [-1, 1]."""
    # One generator a sample: it depends on the id alone.
    draw = np.random.Generator(np.random.Philox(key=int(seed)))
    if field.upper_bound is not None:
        return draw.integers(field.upper_bound, size=field.shape, dtype=np.int32)
    # A byte a number: an image of 224 x 224 takes 0.2 ms, not the 2 ms of normals.
    bytes_ = draw.integers(256, size=field.shape, dtype=np.uint8)
    return bytes_ * np.float32(2 / 255) - np.float32(1)


class Volumes:
    """Volumes in files, in the order of their names; a `Source`."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to `image` [n, D, H, W, C] and `target` [n, m]."""
        samples: list[dict[str, NDArray[Any]]] = []
        # A file is read whole each time: volumes are too large to hold.
        for path in (self._files[i] for i in ids):
            samples.append(_read_volume(path))
            for key, array in samples[-1].items():
                if array.shape != samples[0][key].shape:
                    raise _no_volume_error(
                        path,
                        f"{key} is {list(array.shape)}, others are "
                        f"{list(samples[0][key].shape)}",
                    )
        return {key: np.stack([s[key] for s in samples]) for key in ("image", "target")}

    @property
    def fingerprint(self) -> str:
        """Digest of names and sizes; no file is read."""
        # Names and sizes: reading terabytes to name them would take as long as
        # training.
        text = "\n".join(f"{f.name} {f.stat().st_size}" for f in self._files)
        return hashlib.sha256(text.encode()).hexdigest()


def _read_volume(path: Path) -> dict[str, NDArray[Any]]:
    with (
        decoder_errors(lambda said: _no_volume_error(path, said)),
        np.load(path) as file,
    ):
        return {key: file[key] for key in ("image", "target")}


def _no_volume_error(path: Path, values: str) -> BadInput:
    return BadInput(
        f"{path} is no volume",
        rule="a volume is an .npz file with image [D, H, W, C] and target [n], of the "
        "same shapes in all",
        values=values,
        remedy=f"np.savez('{path}', image=..., target=...)",
    )


def open_volumes(path: str) -> tuple[Volumes, Volumes]:
    """Open a folder of volumes.

    Args:
        path: the folder (`data.path`).

    Raises:
        BadInput: no such folder, or no volume in one of its parts.
    """
    # Sorted: file systems list in any order, and ids are places in this list.
    found = [sorted(Path(path, part).glob("*.npz")) for part in ("train", "test")]
    if not path or not all(found):
        counts = f"{len(found[0])} in train, {len(found[1])} in test"
        raise BadInput(
            f"no volumes in {path or 'data.path'}",
            rule="volumes are FOLDER/train/*.npz and FOLDER/test/*.npz, "
            "each with image [D, H, W, C] and target [n]",
            values=counts if path else "data.path is empty",
            remedy=["data.path=FOLDER", "data.name=synthetic, random volumes"],
        )
    return Volumes(found[0]), Volumes(found[1])


NUM_FRAMES: Final = 5
FRAME_SIZE: Final = 16
CLIPS_PER_DIGIT: Final = 2
"""Clips of one digit."""
_DIGIT_SIZE: Final = 8
_MARGIN: Final = 2
"""Rows and columns around the field in which digits move."""
_CLIP_DOMAIN: Final = 0x434C4950
"""Keeps these draws apart from all others."""

DIGIT_NAMES: Final = (
    *("a zero", "a one", "a two", "a three", "a four"),
    *("a five", "a six", "a seven", "an eight", "a nine"),
)
MOTIONS: Final = (
    ("stays", 0, 0),
    ("moves left", 0, -1),
    ("moves right", 0, 1),
    ("moves up", -1, 0),
    ("moves down", 1, 0),
    ("moves up and left", -1, -1),
    ("moves up and right", -1, 1),
    ("moves down and left", 1, -1),
    ("moves down and right", 1, 1),
)
"""What a digit does, and the pixels it goes down and right from frame to frame."""


def open_moving_digits(directory: Path) -> tuple[Clips, Clips]:
    """Open the clips, preparing the digits when they are not there yet.

    Args:
        directory: folder of all data sets (`data.dir`).

    Returns:
        2,874 clips to train on and 720 held out.

    Raises:
        BadInput: the folder cannot be written, or what is there is damaged.
    """
    every = [f"{number} {does}" for number in DIGIT_NAMES for does, *_ in MOTIONS]
    vocabulary, length = build_vocabulary(every), max_caption_length(every)
    train, test = (
        Clips(*render_clips(source, part), vocabulary, length)
        for part, source in enumerate(open_digits(directory))
    )
    return train, test


def render_clips(digits: Source, split_index: int) -> tuple[Pixels, list[str]]:
    """Film every digit of a source.

    Args:
        digits: `image` [16, 16, 1], each pixel of the 8x8 doubled, and `label`.
        split_index: another part draws other motions.

    Returns:
        Clips uint8 [N, 5, 16, 16, 1] and captions, N = `CLIPS_PER_DIGIT` a digit.
    """
    ids = np.arange(len(digits) * CLIPS_PER_DIGIT)
    found = digits.get(ids // CLIPS_PER_DIGIT)
    images = (found["image"][:, ::2, ::2, 0] * 255).astype(np.uint8)
    draws = hash64(_CLIP_DOMAIN, split_index, ids)
    motions = bounded_int(len(MOTIONS), draws).astype(np.int64)
    captions = [
        f"{DIGIT_NAMES[label]} {MOTIONS[motion][0]}"
        for label, motion in zip(found["label"], motions)
    ]

    # The top left corner of each digit in each frame, [N, FRAMES, 2]: the first is
    # drawn among those from which the whole way stays in the field.
    steps = np.array([step for _, *step in MOTIONS])[motions]
    way = steps * (NUM_FRAMES - 1)
    room = FRAME_SIZE - _DIGIT_SIZE - 2 * _MARGIN - np.abs(way) + 1
    start = np.stack([hash64(draws, dim) for dim in (1, 2)], -1)
    start = (start % room.astype(np.uint64)).astype(np.int64)
    # A way up or to the left begins that much further down or to the right.
    first = _MARGIN + start - np.minimum(way, 0)
    corners = first[:, None] + steps[:, None] * np.arange(NUM_FRAMES)[:, None]

    # All pixels of all digits are written at once, by index.
    size = np.arange(_DIGIT_SIZE)
    clips = np.zeros((len(ids), NUM_FRAMES, FRAME_SIZE, FRAME_SIZE, 1), np.uint8)
    # [N, FRAMES, 8] each
    rows, columns = corners[..., 0, None] + size, corners[..., 1, None] + size
    clip, frame = np.ogrid[: len(ids), :NUM_FRAMES]
    place: Any = (
        clip[..., None, None],
        frame[..., None, None],
        rows[..., :, None],
        columns[..., None, :],
        0,
    )
    clips[place] = images[:, None]
    return clips, captions
