"""Pictures: photographs in files, decoded, cut and scaled when they are read."""

import io
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.input.crops import Crop, center_crop, random_resized_crop
from jaxdist.input.sources import Arrays, SampleIds, Source

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES: Final = {1: "L", 3: "RGB"}
"""Pillow's name of the colours, by number of channels."""
_MEAN: Final = {1: (0.449,), 3: (0.485, 0.456, 0.406)}
_STD: Final = {1: (0.226,), 3: (0.229, 0.224, 0.225)}
"""Mean and standard deviation of ImageNet's colours, of values in [0, 1]."""


class EncodedImages(Protocol):
    """Compressed images with a label each; ids are 0 ... len - 1."""

    classes: int
    """Labels are 0 ... classes - 1."""
    remedy: str
    """What helps where an image cannot be decoded."""

    def __len__(self) -> int:
        """Count the images."""

    def read(self, ids: Iterable[int]) -> Sequence[tuple[bytes, int]]:
        """Read JPEG or PNG files and their labels."""

    def name(self, sample: int) -> str:
        """Name one image as a person finds it."""

    @property
    def fingerprint(self) -> str:
        """Name the images and their order."""


class DecodedImages:
    """Images of one size out of files; a `Source` whose samples vary in training.

    Args:
        encoded: the files.
        shape: rows, columns and channels (1 or 3) of an image.

    Raises:
        BadInput: other channels.
    """

    def __init__(self, encoded: EncodedImages, shape: tuple[int, ...]) -> None:
        self._encoded, (self._rows, self._columns, self._channels) = encoded, shape
        if self._channels not in _MODES:
            raise BadInput(
                f"photographs do not have {self._channels} channels",
                rule="images are read in grey (1 channel) or in colour (3)",
                values=f"the network reads images {list(shape)}",
                remedy="model.channels=3",
            )
        self.classes = encoded.classes

    def __len__(self) -> int:
        return len(self._encoded)

    def get(self, ids: SampleIds) -> Arrays:
        """Read the middle of images: int [n] to `image` float32 and `label` int32."""
        return self._decode_crops(ids, lambda row, *size: center_crop(*size))

    def vary(self, ids: SampleIds, epochs: SampleIds, seed: int) -> Arrays:
        """Read the part that each image shows in its epoch, as `get` does."""

        def drawn(row: int, width: int, height: int) -> Crop:
            of = {"seed": seed, "epoch": int(epochs[row]), "sample": int(ids[row])}
            return random_resized_crop(width, height, **of)

        return self._decode_crops(ids, drawn)

    @property
    def fingerprint(self) -> str:
        """Name the files, and the size they are read in."""
        size = f"{self._rows} x {self._columns} x {self._channels}"
        return f"{self._encoded.fingerprint} {size}"

    @property
    def stored(self) -> "EncodedImageSource":
        """The files, as they are: what a host keeps."""
        return EncodedImageSource(self._encoded)

    def over(self, stored: Source) -> "DecodedImages":
        """Return the same images, out of files that another source has."""
        shape = self._rows, self._columns, self._channels
        return DecodedImages(StoredEncodedImages(stored, self._encoded), shape)

    def _decode_crops(
        self, ids: SampleIds, crop: Callable[[int, int, int], Crop]
    ) -> Arrays:
        """Decode images and cut `crop(row, width, height)` out of each."""
        from PIL import ImageOps
        from PIL.Image import Resampling

        files = self._encoded.read(ids.tolist())
        shape = self._rows, self._columns, self._channels
        images = np.empty((len(files), *shape), np.uint8)
        for row, (sample, (data, _)) in enumerate(zip(ids, files, strict=True)):
            image = self._decode(data, sample)
            part = crop(row, *image.size)
            # The box has parts of pixels: resize cuts and scales in one interpolation.
            size = (self._columns, self._rows)
            seen = image.resize(size, Resampling.BILINEAR, box=part.box)
            seen = ImageOps.mirror(seen) if part.flip else seen
            images[row] = np.asarray(seen).reshape(shape)

        # Mean 0 and standard deviation 1 over ImageNet.
        mean = np.float32(255) * np.array(_MEAN[self._channels], np.float32)
        spread = np.float32(255) * np.array(_STD[self._channels], np.float32)
        labels = np.array([label for _, label in files], np.int32)
        return {"image": (images - mean) / spread, "label": labels}

    def _decode(self, data: bytes, sample: int) -> "Image":
        """Decode one file, in the channels that are read."""
        from PIL import Image

        try:
            # Converted: files in grey, with a palette or with transparency are among
            # photographs.
            with Image.open(io.BytesIO(data)) as file:
                return file.convert(_MODES[self._channels])
        except (OSError, ValueError, SyntaxError) as error:
            raise BadInput(
                f"{self._encoded.name(sample)} cannot be read",
                rule="every image is a whole JPEG or PNG file",
                values=f"{len(data):,} B: {error}",
                remedy=self._encoded.remedy,
            ) from error


class EncodedImageSource:
    """Compressed images as samples: `file`, bytes, and `label`; a `Source`.

    Args:
        encoded: the images.
    """

    def __init__(self, encoded: EncodedImages) -> None:
        self._encoded = encoded

    def __len__(self) -> int:
        return len(self._encoded)

    def get(self, ids: SampleIds) -> Arrays:
        """Read files: int [n] to `file`, bytes objects [n], and `label` int32 [n]."""
        read = self._encoded.read(ids.tolist())
        files = np.empty(len(read), object)
        # Assigned: NumPy would turn a list of bytes into strings of one width.
        files[:] = [data for data, _ in read]
        return {"file": files, "label": np.array([x for _, x in read], np.int32)}

    @property
    def fingerprint(self) -> str:
        """That of the images."""
        return self._encoded.fingerprint


class StoredEncodedImages:
    """The same again: compressed images that a source has; is `EncodedImages`.

    Args:
        files: `file` and `label` of each image.
        encoded: whose they are.
    """

    def __init__(self, files: Source, encoded: EncodedImages) -> None:
        self._files, self._encoded = files, encoded
        self.classes, self.remedy = encoded.classes, encoded.remedy

    def __len__(self) -> int:
        return len(self._files)

    def read(self, ids: Iterable[int]) -> Sequence[tuple[bytes, int]]:
        """Read files and their labels."""
        # The store of a host, which reads the data set for what it does not have.
        found = self._files.get(np.array(list(ids), np.int64))
        return list(zip(found["file"].tolist(), found["label"].tolist(), strict=True))

    def name(self, sample: int) -> str:
        """Name one image as its own source does."""
        return self._encoded.name(sample)

    @property
    def fingerprint(self) -> str:
        """That of the images."""
        return self._encoded.fingerprint
