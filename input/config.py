"""Data settings: which samples a run trains on, and how they are fed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jaxdist.core.errors import BadInput
from jaxdist.input.augmentation import Augmentation

if TYPE_CHECKING:
    from jaxdist.input.prefetch import Workers


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The `data.` keys of an experiment."""

    name: str = "digits"
    """Data set: one of `jaxdist.input.registry.dataset_names()`, a TFDS data set of
    images (`imagenet2012`, or `tfds:imagenet2012`), arrays of one's own
    (`numpy:FILE.npz`), volumes in files (`hdf5:`, `zarr:`, `nifti:` and a path), or a
    function of one's own, `file.py:function`.
    """
    dir: str = "data"
    """Folder in which data sets are prepared once and then read."""
    batch: int = 64
    """Samples a step, over all devices together."""
    eval_window: tuple[int, ...] = ()
    """Rows of the windows by which images are evaluated, `64,64,64`, or one number for
    all dims; empty: images whole, unless `augment` crops them: then its crop.
    """
    eval_overlap: float = 0.5
    """Part of a window that the next one sees as well."""
    eval_blend: Literal["gaussian", "constant", "center"] = "gaussian"
    """How windows count that see the same pixel: most in their middles, all the same,
    or only the one in which it is farthest from the edges."""
    eval_batch: int | None = None
    """Samples an evaluation step, over all devices together; none: as `batch`."""
    shift: int = 0
    """Largest random shift of a training image, pixels; 0: images as they are. What an
    experiment says of its own data set does not hold for samples of one's own."""
    augment: tuple[str, ...] = ()
    """How training images vary, and masks with them: `flip`, `rotate90`, `crop:64`,
    `shift:4`, `roll:4`, `noise:0.1`; `flip:hw` and `crop:32x64x64` name dims.
    """
    path: str = ""
    """What to read, for a data set of one's own: the file of a text or of clips, or the
    folder of texts, images, arrays or volumes.
    """
    keys: tuple[str, ...] = ()
    """What arrays of HDF5, Zarr and NIfTI files are called that the network reads under
    another name: `image=raw,mask=segmentation`.
    """
    size: int | None = None
    """Rows and columns of images that are drawn, to which those of files are cut, or
    those of `arrays` pooled; none: the network's own, and all that arrays have. Volumes
    and arrays that are read as they are refuse it.
    """
    channel_dim: Literal["last", "first"] = "last"
    """Where images of arrays and volumes have their channels: [N, H, W, C], or
    [N, C, H, W] as PyTorch has them.
    """
    samples: int = 1024
    """Training samples of synthetic data; an eighth as many more are held out."""
    context: int = 128
    """Tokens a sample, for text."""
    stride: int | None = None
    """Tokens from the start of one training sample to the next; none: as `context`."""
    order: Literal["stored", "label"] = "stored"
    """Which training samples are neighbours: as they are stored, or sorted by label,
    the worst case for plan.shuffle.exchange_fraction.
    """
    corrupt_images: Literal["refuse", "skip"] = "refuse"
    """What is done with images of a folder that cannot be decoded: the run ends at the
    first, or all are looked for beforehand and left out.
    """
    check: Literal["first", "all", "off"] = "first"
    """Which batches are looked at for numbers that are not finite, before devices have
    them: the first and every hundredth, all, or none.
    """
    ignore_value: int = -100
    """A target of a token, or a class of a pixel, with this number counts for nothing,
    neither in the loss nor in the answers.
    """
    cache: Literal["none", "memory", "disk"] = "none"
    """Where a host keeps the samples of its partitions, for a partial local shuffle:
    nowhere, in memory, or in `cache_dir`.
    """
    cache_dir: str = ""
    """Folder on a disk of the host's own, for data.cache=disk."""
    exchange: Literal["origin", "peers"] = "origin"
    """Who brings a host that keeps samples those that come: the data set, or the host
    that has them.
    """
    interface: str = ""
    """Network interface between hosts, for data.exchange=peers; empty: that on which
    process 0 is reached.
    """
    threads: int = 1
    """Threads that prepare batches ahead; more help only where reading is slow."""
    workers: int = 0
    """Processes that prepare batches, each with so many threads; 0: the run's own."""

    def __post_init__(self) -> None:
        # Before anything is opened: a slip ends the run at once, with a value that
        # works.
        counts = ("batch", "eval_batch", "context", "stride", "size", "samples")
        least = dict.fromkeys(counts, 1)
        least |= {"shift": 0, "threads": 1, "workers": 0}
        for key, low in least.items():
            value = getattr(self, key)
            if value is not None and value < low:
                raise BadInput(
                    f"data.{key} is too small",
                    rule=f"data.{key} is at least {low}",
                    values=f"data.{key} = {value}",
                    remedy=f"data.{key}={low}",
                )
        Augmentation.parse(self.augment, self.shift)
        if wrong := [pair for pair in self.keys if not all(pair.partition("="))]:
            raise BadInput(
                f"data.keys has {wrong[0]}, which names no array",
                rule="data.keys are pairs of a key of the network and a name in a file",
                values=f"data.keys = {','.join(self.keys)}",
                remedy="data.keys=image=raw,mask=segmentation",
            )
        if (self.cache == "disk") != bool(self.cache_dir):
            raise BadInput(
                "a disk and its folder go together",
                rule="data.cache=disk has a data.cache_dir, other caches have none",
                values=f"data.cache = {self.cache}, data.cache_dir = "
                f"{self.cache_dir or 'empty'}",
                remedy="data.cache=disk data.cache_dir=/local/samples",
            )
        if self.exchange == "peers" and self.cache == "none":
            raise BadInput(
                "hosts that keep no samples have none for each other",
                rule="data.exchange=peers needs a data.cache",
                values="data.exchange = peers, data.cache = none",
                remedy="data.cache=memory",
            )

    @property
    def stored_names(self) -> dict[str, str]:
        """Names in files by key of the network, where they differ.

        >>> DataConfig(keys=("image=raw",)).stored_names
        {'image': 'raw'}
        """
        return dict(pair.split("=", 1) for pair in self.keys)

    @property
    def prefetch_workers(self) -> "int | Workers":
        """Threads or processes that prepare batches."""
        # Not at the top: reading settings imports neither NumPy nor grain.
        from jaxdist.input.prefetch import Workers

        return Workers(self.workers, self.threads) if self.workers else self.threads

    @property
    def eval_batch_size(self) -> int:
        """Samples an evaluation step, over all devices together."""
        return self.batch if self.eval_batch is None else self.eval_batch
