"""Pictures of samples for a report: small PNGs in base64."""

import base64
import io
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_MAX_PIXELS: Final = 96
"""Rows and columns of a picture that is kept."""
# The first is black: most pixels are background. Wong 2011, doi:10.1038/nmeth.1618, has
# colours that most people with colour blindness tell apart.
_CLASS_COLOURS: Final = (
    *((0, 0, 0), (240, 228, 66), (86, 180, 233), (0, 158, 115), (204, 121, 167)),
    *((230, 159, 0), (0, 114, 178), (213, 94, 0)),
)
_MISSED: Final = (230, 159, 0)
"""Colour of pixels whose class the answer takes for background."""
_INVENTED: Final = (86, 180, 233)
"""Colour of pixels of the background that the answer gives a class."""
_CONFUSED: Final = (204, 121, 167)
"""Colour of pixels of one class that the answer takes for another."""


def encode_picture(image: NDArray[Any]) -> str:
    """Write a sample as a small PNG in base64, from its darkest to its brightest value.

    Args:
        image: [H, W, C], or a volume [D, H, W, C], of which the middle is shown.
    """
    values = np.asarray(image)
    while values.ndim > 3:
        values = values[len(values) // 2]
    scaled = _scale(values)
    # Channels that are no colours are seen by the first of them.
    return _encode(scaled if scaled.shape[-1] == 3 else scaled[..., 0])


def encode_classes(classes: NDArray[np.integer[Any]]) -> str:
    """Write classes of pixels, int [H, W], as a small PNG of a colour each."""
    colours = np.array(_CLASS_COLOURS, np.uint8)
    # More classes than colours: they come again, and what does not count is grey.
    shown = colours[classes % len(colours)]
    shown[classes < 0] = 128
    return _encode(shown, Image.Resampling.NEAREST)


def encode_errors(
    image: NDArray[Any],
    mask: NDArray[np.integer[Any]],
    answer: NDArray[np.integer[Any]],
    ignored: int,
) -> str:
    """Write an image [H, W, C] in grey as a small PNG, with wrong pixels in colour.

    Args:
        image: the image.
        mask: the class of each pixel, [H, W].
        answer: what the network says, [H, W].
        ignored: class of pixels that do not count.
    """
    # Half as bright, so that colours stand out.
    grey = _scale(image[..., :1]) // 2
    shown = np.repeat(grey, 3, -1)
    wrong = (mask != answer) & (mask != ignored)
    shown[wrong & (answer == 0)] = _MISSED
    shown[wrong & (mask == 0)] = _INVENTED
    shown[wrong & (mask != 0) & (answer != 0)] = _CONFUSED
    return _encode(shown, Image.Resampling.NEAREST)


def _scale(image: NDArray[Any]) -> NDArray[np.uint8]:
    values = np.asarray(image, np.float64)
    low, high = float(values.min()), float(values.max())
    return (255 * (values - low) / ((high - low) or 1.0)).astype(np.uint8)


def _encode(
    pixels: NDArray[np.uint8],
    resampling: Image.Resampling = Image.Resampling.BICUBIC,
) -> str:
    # Of colours that are classes, NEAREST alone mixes none to that of another class.
    picture = Image.fromarray(pixels)
    picture.thumbnail((_MAX_PIXELS, _MAX_PIXELS), resampling)
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
