"""The TFDS builder of the digits; imported only while they are prepared."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import tensorflow_datasets as tfds
from numpy.typing import NDArray

from jaxdist.input.digits import VERSION

Example = tuple[int, dict[str, Any]]

BUNDLED: Final = Path(__file__).with_name("digits.npz")
"""`images`, `labels`, and which of them, in which order, `train` and `test` are."""


# Not in the global registry: it is opened by its folder.
with tfds.core.registered.skip_registration():

    class Digits(tfds.core.GeneratorBasedBuilder):
        """Handwritten digits, 8x8; their source is in `digits.LICENSE.txt`."""

        VERSION = tfds.core.Version(VERSION)
        # Nothing is downloaded. Looking for a list of addresses beside this file, as
        # TFDS does for a builder in a package, needs a package that TFDS does not
        # require.
        url_infos: ClassVar[dict[str, Any]] = {}

        def _info(self) -> tfds.core.DatasetInfo:
            # Tensor, not Image: Image needs TensorFlow to write and Pillow to read.
            features = {
                "image": tfds.features.Tensor(shape=(8, 8), dtype=np.uint8),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
            return tfds.core.DatasetInfo(
                builder=self,
                description="1,797 handwritten digits, 8x8 pixels, values 0 to 16.",
                features=tfds.features.FeaturesDict(features),
                supervised_keys=("image", "label"),
                homepage="https://archive.ics.uci.edu/dataset/80",
            )

        def _split_generators(self, _: Any) -> dict[str, Iterator[Example]]:
            with np.load(BUNDLED) as digits:
                images, labels = digits["images"], digits["labels"]
                return {
                    split: self._generate_examples(images, labels, digits[split])
                    for split in ("train", "test")
                }

        def _generate_examples(
            self,
            images: NDArray[np.uint8],
            labels: NDArray[np.uint8],
            ids: Iterable[int],
        ) -> Iterator[Example]:
            for i in ids:
                yield int(i), {"image": images[i], "label": int(labels[i])}


def write(directory: str) -> None:
    """Write the data set into `directory/digits`."""
    tfds.disable_progress_bar()
    Digits(data_dir=directory, file_format="array_record").download_and_prepare()
