"""One word, one meaning: no two public classes of the package share a name."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Blocks inside one network each, as its publication calls them. Their names are part of
# a block's signature in calibrated cluster files, so a new name would lose timings.
EXCEPTIONS = {"Auxiliary", "Head", "Stage"}


def test_public_classes_have_a_name_of_their_own():
    homes = defaultdict(list)
    for room in ("jaxdist", "meshes", "models", "input", "launch"):
        for path in (ROOT / room).rglob("*.py"):
            if any(parent.is_symlink() for parent in path.parents):
                continue
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(str(path.relative_to(ROOT)))
    shared = {name: files for name, files in homes.items() if len(files) > 1}
    assert set(shared) <= EXCEPTIONS, shared
