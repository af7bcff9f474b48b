"""Augmentation by name: how training samples are varied, and which shape they get."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from jaxdist.core.errors import BadInput, did_you_mean

Shapes = Mapping[str, tuple[int, ...]]
"""Shape of one sample's arrays, by key."""

_DIMS: Final = "dhw"
"""Dims of an image: depth, rows and columns; the last ones where there are fewer."""
_FORMS: Final = {
    "flip": r"[dhw]+",
    "rotate90": r"[dhw]+",
    "crop": r"[1-9]\d*(x[1-9]\d*)*",
    "shift": r"[1-9]\d*",
    "roll": r"[1-9]\d*",
    "noise": r"\d*\.?\d+(e-?\d+)?",
}
_EXAMPLES: Final = (
    *("flip", "flip:hw", "rotate90", "rotate90:hw", "crop:64", "crop:32x64x64"),
    *("shift:4", "roll:4", "noise:0.1"),
)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens to a training sample, in this order whatever the order of its words.

    >>> Augmentation.parse(["flip:w", "crop:8"]).output_shape((16, 16, 3))
    (8, 8, 3)
    """

    crop: tuple[int, ...] = ()
    """Sides of a part at a random place; one number holds for all; empty: the whole."""
    rotate90: str = ""
    """Dims that rotations by right angles exchange, as letters of `dhw`; "*": all."""
    flip: str = ""
    """Dims that are mirrored, each half of the time, as letters of `dhw`; "*": all."""
    shift: int = 0
    """Furthest move along each dim, pixels; zeros move in, and do not count."""
    roll: int = 0
    """Furthest move along each dim, pixels; what leaves comes in on the other side."""
    noise: float = 0.0
    """Standard deviation of Gaussian noise on images, in the units of their values."""

    @classmethod
    def parse(cls, words: Sequence[str], shift: int = 0) -> Self:
        """Return what words ask for, `data.augment`.

        Args:
            words: a name each, most with a value behind a colon.
            shift: `data.shift`, the older key of `shift:N`.

        Raises:
            BadInput: a word that is none, or said twice.
        """
        named: dict[str, str] = {}
        for word in words:
            name, colon, value = word.partition(":")
            # flip and rotate90 without a value mean all dims.
            needs_value = name not in ("flip", "rotate90")
            form = _FORMS.get(name)
            matches = form and re.fullmatch(form, value)
            if form is None or not (matches or not (colon or needs_value)):
                near = did_you_mean(name, tuple(_FORMS))
                meant = [x for x in _EXAMPLES if near and x.startswith(near)]
                raise BadInput(
                    f"there is no augmentation {word}",
                    rule=f"data.augment has words like {', '.join(_EXAMPLES)}",
                    values=f"data.augment = {','.join(words)}",
                    remedy=f"data.augment={meant[-1] if meant else 'flip,noise:0.1'}",
                )
            if name in named:
                raise _twice_error(words, name)
            named[name] = value
        if shift and {"shift", "roll"} & named.keys():
            raise _twice_error([*words, f"shift:{shift}"], "shift")
        # A pixel that leaves either is gone or comes in again.
        if {"shift", "roll"} <= named.keys():
            raise _twice_error(words, "shift")
        return cls(
            crop=tuple(map(int, named["crop"].split("x"))) if "crop" in named else (),
            rotate90=named["rotate90"] or "*" if "rotate90" in named else "",
            flip=named["flip"] or "*" if "flip" in named else "",
            shift=int(named.get("shift", shift)),
            roll=int(named.get("roll", 0)),
            noise=float(named.get("noise", 0)),
        )

    @property
    def moves(self) -> bool:
        """Whether pixels change their places."""
        return bool(self.crop or self.rotate90 or self.flip or self.shift or self.roll)

    def sides(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sides of an image [..., C] as it is seen.

        Raises:
            BadInput: it is no image, or has not the sides that are asked for.
        """
        whole = image[:-1]
        if not 1 <= len(whole) <= len(_DIMS):
            raise BadInput(
                "these samples are not augmented",
                rule="data.augment and data.shift are for images [H, W, C] and volumes "
                "[D, H, W, C]",
                values=f"samples are {list(image)}",
                remedy="data.shift=0 data.augment=",
            )
        seen = self.crop * len(whole) if len(self.crop) == 1 else self.crop or whole
        if len(seen) != len(whole) or any(a > b for a, b in zip(seen, whole)):
            fitting = "x".join(str(min(seen[0], n)) for n in whole)
            raise BadInput(
                "such a part cannot be cut out of these samples",
                rule="crop has a number for each dim of an image, or one for all, and "
                "none is larger than its dim",
                values=f"crop:{'x'.join(map(str, self.crop))}, an image is "
                f"{list(image)}",
                remedy=f"data.augment=crop:{fitting}",
            )
        # Here the number of dims is known: names of others are refused.
        for word in ("flip", "rotate90"):
            self.dims(word, len(whole))
        turned = self.dims("rotate90", len(whole))
        # A quarter turn exchanges two sides: with unlike ones a batch would have
        # samples of two shapes.
        if turned and len({seen[i] for i in turned}) > 1:
            letters, equal = _DIMS[-len(whole) :], _equal_dims(seen)
            remedies = [f"data.augment=crop:{min(seen)},rotate90"]
            if equal:
                names = "".join(letters[i] for i in equal)
                remedies.append(f"data.augment=rotate90:{names}")
            raise BadInput(
                "these samples cannot be rotated by right angles",
                rule="rotate90 exchanges dims of one size: all, or those that are "
                "named",
                values=", ".join(f"{letters[i]} = {seen[i]}" for i in turned),
                remedy=remedies,
            )
        return tuple(seen)

    def dims(self, word: str, rank: int) -> tuple[int, ...]:
        """Return the dims of an image that `flip` or `rotate90` names.

        Args:
            word: which of the two.
            rank: how many dims an image has beside its channels.

        Raises:
            BadInput: a dim that it does not have, or one alone to be exchanged.
        """
        named, letters = getattr(self, word), _DIMS[-rank:]
        found = [i for i in range(rank) if letters[i] in named or named == "*"]
        few = word == "rotate90" and named and len(found) < 2
        if few or (named != "*" and set(named) - set(letters)):
            raise BadInput(
                f"images do not have the dims that {word} names",
                rule=f"dims of these images are {', '.join(letters)}"
                + ("; rotate90 exchanges two of them or more" if few else ""),
                values=f"{word}:{named}",
                remedy=f"data.augment={word}",
            )
        return tuple(found)

    def output_shape(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in which an image is seen."""
        return (*self.sides(image), image[-1])

    def sample_shapes(self, shapes: Shapes, ignored: Mapping[str, float]) -> Shapes:
        """Return the shapes in which a sample's arrays are seen.

        Args:
            shapes: of the arrays of a sample.
            ignored: numbers that count for nothing, by key.

        Raises:
            BadInput: samples without an image, or of another shape than the words want.
        """
        # Samples without an image are refused only where something is asked of them.
        if self == Augmentation():
            return shapes
        if "image" not in shapes:
            raise BadInput(
                "samples without an image are not augmented",
                rule="data.augment and data.shift vary images, and what lies on their "
                "pixels",
                values=f"a sample has {', '.join(shapes)}",
                remedy="data.shift=0 data.augment=",
            )
        seen, found = self.sides(shapes["image"]), dict(shapes)
        for key in pixel_keys(shapes):
            found[key] = (*seen, *shapes[key][len(seen) :])
            # What moves in was never seen: only a number that counts for nothing may
            # stand there.
            if self.shift and key != "image" and key not in ignored:
                raise BadInput(
                    f"nothing can move into {key} from outside of an image",
                    rule="shift wants targets with a number that does not count, such "
                    "as the ignore_value of a mask",
                    values=f"shift:{self.shift}, {key} is {list(shapes[key])}",
                    remedy=(f"data.augment=roll:{self.shift}", "or a crop"),
                )
        return found


def pixel_keys(shapes: Shapes) -> tuple[str, ...]:
    """Name the arrays of a sample that have a value for each pixel of its image.

    >>> pixel_keys({"image": (8, 8, 1), "mask": (8, 8), "label": ()})
    ('image', 'mask')
    """
    # By shape, since arrays of any name may lie on the pixels.
    sides = shapes["image"][:-1]
    return tuple(k for k, shape in shapes.items() if shape[: len(sides)] == sides)


def _equal_dims(sides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dims of the size that most have; none where all differ."""
    most = max(sides, key=sides.count)
    same = tuple(i for i, n in enumerate(sides) if n == most)
    return same if len(same) > 1 else ()


def _twice_error(words: Sequence[str], name: str) -> BadInput:
    kept = [word for word in words if word.partition(":")[0] not in ("shift", "roll")]
    remedy = [*kept, "roll:4"] if name == "shift" else list(dict.fromkeys(words))[:1]
    return BadInput(
        f"samples are to be varied by {name} twice",
        rule="each word comes once, and of shift and roll one; data.shift=N is shift:N",
        values=f"{', '.join(words)}",
        remedy=f"data.shift=0 data.augment={','.join(remedy)}",
    )
