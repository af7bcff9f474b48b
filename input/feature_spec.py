"""What a network wants: the shape of each array of a sample, and its range."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One array of a sample."""

    shape: tuple[int, ...] = ()
    """Its shape in one sample; empty for a single number."""
    upper_bound: int | None = None
    """Whole numbers from 0 to below this; None: real numbers."""
    is_open: bool = False
    """Whether nothing is known but that the network is trained on it."""


FeatureSpec = Mapping[str, Feature]
"""Arrays of a sample by key; empty where nothing is known of the network."""


def image_shape(features: FeatureSpec, dataset_name: str) -> tuple[int, ...]:
    """Return the shape of one image that a network is made for, `[H, W, C]`.

    Args:
        features: what the network is trained on.
        dataset_name: name of the data set that is to be read.

    Raises:
        BadInput: the network reads no images, or nothing is known of it.
    """
    if "image" in features and len(features["image"].shape) == 3:
        return features["image"].shape
    known = ", ".join(f"{k} {list(f.shape)}" for k, f in features.items())
    raise BadInput(
        f"{dataset_name} has images, and the network reads none",
        rule="images are read in the size that the network was made for",
        values=f"the network reads {known or 'what only its own file knows'}",
        remedy="model.name=resnet50, or another data.name",
    )


def masked_image(
    features: FeatureSpec, dataset_name: str, others: str = ""
) -> tuple[tuple[int, ...], int]:
    """Return the shape of an image that a network gives classes to, and how many.

    Args:
        features: what the network is trained on.
        dataset_name: name of the data set that is to be drawn.
        others: what else it is for, for the refusal.

    Raises:
        BadInput: the network reads no images with masks of two classes or more.
    """
    image, mask = features.get("image"), features.get("mask")
    classes = mask.upper_bound if mask else None
    if image is None or classes is None or classes < 2:
        known = ", ".join(f"{k} {list(f.shape)}" for k, f in features.items())
        raise BadInput(
            f"{dataset_name} are images with masks, and the network reads none",
            rule=f"data.name={dataset_name} is for networks of the registry that say a "
            f"class for each pixel, of two classes or more{others}",
            values=f"the network reads {known or 'what only its own file knows'}"
            + (f", of {classes} classes" if classes is not None else ""),
            remedy="model.name=unet2d, or unet3d; model.classes=2",
        )
    return image.shape, classes
