"""Moving digits: clips of handwritten digits on the move, with captions.

Each digit of the digits data set, 8x8 pixels, is filmed twice on a screen of 16x16: 5
frames in which it stays, or moves by one pixel a frame in one of eight directions, in a
field of 12x12. Motion and place are drawn by the digit's id, so the clips are the same
on every machine; held-out clips show held-out handwriting.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np

from jaxdist.input.clips import Clips, Pixels, build_vocabulary, max_caption_length
from jaxdist.input.digits import open_digits
from jaxdist.input.keyed_permutation import bounded_int, hash64
from jaxdist.input.sources import Source

NUM_FRAMES: Final = 5
FRAME_SIZE: Final = 16
CLIPS_PER_DIGIT: Final = 2
"""Clips of one digit."""
_DIGIT_SIZE: Final = 8
_MARGIN: Final = 2
"""Rows and columns around the field in which digits move."""
_KEY_DOMAIN: Final = 0x434C4950
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
    draws = hash64(_KEY_DOMAIN, split_index, ids)
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
    first = _MARGIN + start - np.minimum(way, 0)
    corners = first[:, None] + steps[:, None] * np.arange(NUM_FRAMES)[:, None]

    # All pixels of all digits are written at once, by index.
    size = np.arange(_DIGIT_SIZE)
    clips = np.zeros((len(ids), NUM_FRAMES, FRAME_SIZE, FRAME_SIZE, 1), np.uint8)
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
