"""Pictures: photographs in files, decoded, cut and scaled when they are read."""

import io
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.core.text_encoding import printable_path
from jaxdist.input.crops import Crop, center_crop, random_resized_crop
from jaxdist.input.sources import Arrays, SampleIds, Source

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES: Final = {1: "L", 3: "RGB"}
"""Pillow's name of the colours, by number of channels."""
_WHITE_16: Final = 65535
_ORIENTATION_TAG: Final = 0x0112
_ORIENTATIONS: Final = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What turns a picture upright, by its orientation in EXIF."""
# Of grey they are the means over the colours.
_MEAN: Final = {1: (0.449,), 3: (0.485, 0.456, 0.406)}
_STD: Final = {1: (0.226,), 3: (0.229, 0.224, 0.225)}
"""Mean and standard deviation of ImageNet's colours, of values in [0, 1]."""


class UndecodableImageError(ValueError):
    """Bytes are no picture that can be decoded; with what the decoder said."""


def decode_image(data: bytes, channels: int) -> "Image":
    """Decode a picture as it is shown: upright, in white where it is transparent.

    Args:
        data: a whole file; of an animation the first picture is read.
        channels: 1 for grey, 3 for colour.

    Returns:
        Grey or colour of 8 bits; mode F, grey from 0 to 255, where it has 16 bits.

    Raises:
        UndecodableImageError: whatever the decoder raised.
    """
    from PIL import Image

    mode = _MODES[channels]
    try:
        with Image.open(io.BytesIO(data)) as file:
            turn = _ORIENTATIONS.get(_orientation(file))
            # More than 8 bits: `convert` would cut all greys above 255 off.
            if file.mode[:1] in ("I", "F"):
                seen = _scale_grey(file)
            elif file.has_transparency_data and _is_transparent(file):
                above = file.convert("RGBA")
                white = Image.new("RGBA", file.size, "white")
                seen = Image.alpha_composite(white, above).convert(mode)
            else:
                # Files in grey or with a palette are among photographs.
                seen = file.convert(mode)
        return seen if turn is None else seen.transpose(Image.Transpose[turn])
    except Exception as error:  # decoders raise what they like, by format
        raise UndecodableImageError(str(error) or type(error).__name__) from error


def _orientation(file: "Image") -> int:
    """Return how a camera was held, 1 to 8 as EXIF counts; 1 where nothing is said."""
    try:
        return int(file.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # a picture whose notes are damaged is a picture all the same
        return 1


def _scale_grey(file: "Image") -> "Image":
    """Scale a picture of 16 bits, whose white is 65,535, to a white of 255."""
    from PIL import Image

    pixels = np.asarray(file)
    if pixels.dtype.kind == "f" or pixels.min() < 0 or pixels.max() > _WHITE_16:
        raise ValueError(f"numbers of mode {file.mode} have no white")
    # PNG may name one grey that is transparent: it is white, as elsewhere.
    hidden = file.info.get("transparency")
    if isinstance(hidden, int):
        pixels = np.where(pixels == hidden, _WHITE_16, pixels)
    # 65,535 is 257 x 255, so white is 255 exactly.
    return Image.fromarray(pixels.astype(np.float32) / np.float32(_WHITE_16 // 255))


def _is_transparent(file: "Image") -> bool:
    """Tell whether any pixel lets through what is behind it."""
    low, _ = file.convert("RGBA").getchannel("A").getextrema()
    return bool(low != 255)


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
        class_names: words of the labels, in their order; empty where there are none.

    Raises:
        BadInput: other channels.
    """

    def __init__(
        self,
        encoded: EncodedImages,
        shape: tuple[int, ...],
        class_names: Sequence[str] = (),
    ) -> None:
        self._encoded, (self._rows, self._columns, self._channels) = encoded, shape
        if self._channels not in _MODES:
            raise BadInput(
                f"photographs do not have {self._channels} channels",
                rule="images are read in grey (1 channel) or in colour (3)",
                values=f"the network reads images {list(shape)}",
                remedy="model.channels=3",
            )
        self.classes, self.class_names = encoded.classes, tuple(class_names)

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
        images: NDArray[Any] = np.empty((len(files), *shape), np.uint8)
        for row, (sample, (data, _)) in enumerate(zip(ids, files, strict=True)):
            image = self._decode(data, sample)
            part = crop(row, *image.size)
            # The box has parts of pixels: resize cuts and scales in one interpolation.
            size = (self._columns, self._rows)
            seen = image.resize(size, Resampling.BILINEAR, box=part.box)
            seen = ImageOps.mirror(seen) if part.flip else seen
            pixels = np.asarray(seen)
            if pixels.dtype != images.dtype and pixels.dtype == np.float32:
                # Pictures of 16 bits keep what is below a 256th of white.
                images = images.astype(np.float32)
            images[row] = pixels.reshape(*shape[:2], -1)

        # Mean 0 and standard deviation 1 over ImageNet.
        mean = np.float32(255) * np.array(_MEAN[self._channels], np.float32)
        spread = np.float32(255) * np.array(_STD[self._channels], np.float32)
        labels = np.array([label for _, label in files], np.int32)
        return {"image": (images - mean) / spread, "label": labels}

    def _decode(self, data: bytes, sample: int) -> "Image":
        """Decode one file, in the channels that are read."""
        try:
            return decode_image(data, self._channels)
        except UndecodableImageError as error:
            raise BadInput(
                f"{printable_path(self._encoded.name(sample))} cannot be read",
                rule="every image is a whole JPEG or PNG file, of a size that Pillow "
                "takes for a picture",
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
