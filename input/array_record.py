"""ArrayRecord files: a batch of records in one read, decoded together."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxdist.core.errors import BadInput
from jaxdist.input.sources import Arrays, SampleIds

RecordDecoder = Callable[[Sequence[bytes]], Arrays]
"""Records of a batch to its arrays `[n, ...]`, one a key."""


class ArrayRecordSource:
    """Samples of ArrayRecord files, one record each.

    Reading is fastest in files written with `group_size:1`: a group is read whole.

    Args:
        paths: files; their records are numbered on, in this order.
        decode: turns the records of a batch into arrays. One call a batch, because
            most of the cost of small records is Python's, a call each.

    Raises:
        BadInput: a file that is not there, or no file.
    """

    def __init__(self, paths: Sequence[str | Path], decode: RecordDecoder) -> None:
        # Not at the top: it is a compiled library that only such files need.
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        self._paths = [Path(path) for path in paths]
        gone = [str(path) for path in self._paths if not path.is_file()]
        if gone or not self._paths:
            raise BadInput(
                "there are no records to read",
                rule="a source has at least one file, and every one is there",
                values=", ".join(gone[:5]) or "no file was given",
                remedy='sorted(Path(folder).glob("*.array_record"))',
            )
        self._records: Any = ArrayRecordDataSource([str(path) for path in self._paths])
        self._decode = decode

    def __len__(self) -> int:
        return len(self._records)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n], n > 0, to new arrays [n, ...], in one call."""
        # One call of the reader reads the records of a batch.
        return self._decode(self._records.__getitems__(ids.tolist()))

    @property
    def fingerprint(self) -> str:
        """Digest of the files' names and sizes; no record is read."""
        # Names without folders: a copy in another place has the same samples.
        sizes = [(path.name, path.stat().st_size) for path in self._paths]
        return hashlib.sha256(f"{len(self)} {sizes}".encode()).hexdigest()
