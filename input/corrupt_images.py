"""Damaged images: files that cannot be decoded, looked for once and written down."""

import hashlib
import io
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_THREADS: Final = 4


def find_corrupt_images(files: Sequence[Path], cache_folder: Path) -> frozenset[Path]:
    """Return which image files cannot be decoded, each of them read once.

    Args:
        files: the images.
        cache_folder: folder in which what was found is kept, for these names, sizes
        and times
            of change; files that changed are looked at again.
    """
    index = cache_folder / f"images-{_files_digest(files)}.json"
    if index.is_file():
        return frozenset(map(Path, json.loads(index.read_text(encoding="utf-8"))))
    with ThreadPoolExecutor(_THREADS) as pool:
        whole = pool.map(is_decodable, files)
        found = [path for path, good in zip(files, whole, strict=True) if not good]
    cache_folder.mkdir(parents=True, exist_ok=True)
    part = index.with_suffix(".part")
    part.write_text(json.dumps([str(path) for path in found]), encoding="utf-8")
    part.replace(index)
    return frozenset(found)


def is_decodable(path: Path) -> bool:
    """Tell whether a file is an image that can be decoded to its end."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(path.read_bytes())) as file:
            file.load()
    except (OSError, ValueError, SyntaxError):
        return False
    return True


def _files_digest(files: Sequence[Path]) -> str:
    """Digest names, sizes and times of change."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path} {_file_version(path)}\n".encode())
    return digest.hexdigest()[:16]


def _file_version(path: Path) -> str:
    """Return size and time of change; of a link to nothing that it cannot be read."""
    try:
        seen = path.stat()
    except OSError as error:
        return f"unreadable, {error.errno}"
    return f"{seen.st_size} {seen.st_mtime_ns}"
