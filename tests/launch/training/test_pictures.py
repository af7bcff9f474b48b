"""Small pictures of large masks have the colours of their classes, and no others."""

import base64
import io

import numpy as np
from PIL import Image

from jaxdist.launch.training.pictures import encode_classes, encode_errors


def colours(text):
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
    assert max(picture.shape[:2]) == 96
    return set(map(tuple, picture.reshape(-1, 3).tolist()))


def test_classes_of_large_masks_are_not_mixed():
    mask = np.arange(250)[:, None] // 7 % 4 * np.ones((1, 200), int)
    few = {each for c in range(4) for each in known(c)}
    assert colours(encode_classes(mask)) == few
    wrong = colours(encode_errors(np.zeros((250, 200, 1)), mask, mask * 0, -1))
    assert wrong == {(0, 0, 0), (230, 159, 0)}


def known(label):
    return colours(encode_classes(np.full((96, 96), label)))
