"""Files of JSON are written by one function, which has null for what is not finite."""

import ast
import json
from pathlib import Path

import jaxdist
from jaxdist.core.step_breakdown import DeviceBreakdown, StepBreakdown

PACKAGE = Path(jaxdist.__file__).parent
NO_FILES = {
    "core/validation.py": "has the function itself",
    "calibrate/measured_rows.py": "text that is hashed",
    "train/checkpoint/manifest.py": "text that is hashed",
    "launch/distributed/launcher_messages.py": "a message to the launcher",
    "launch/distributed/process_group.py": "a message to other processes",
    "launch/distributed/start_barrier.py": "a message to other processes",
    "launch/planning/plan_timing.py": "a message to the process that started it",
    "launch/planning/verify.py": "a message to a process that it starts",
}
"""Files that call `json.dumps` themselves, and why that is no file of JSON."""


def calls_json(path):
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("dump", "dumps")
        and isinstance(node.value, ast.Name)
        and node.value.id == "json"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def test_no_file_of_the_package_writes_json_in_a_way_of_its_own():
    # `glob` follows the links to other folders where `rglob` does not.
    rooms = [path for path in PACKAGE.iterdir() if path.is_dir()]
    files = [*PACKAGE.glob("*.py"), *(f for room in rooms for f in room.rglob("*.py"))]
    assert len(files) > 200
    found = {str(path.relative_to(PACKAGE)) for path in files if calls_json(path)}
    assert found == set(NO_FILES)


def test_a_breakdown_that_is_not_finite_is_json():
    def refuse(word):
        raise AssertionError(word)

    device = DeviceBreakdown(device=0, steps=1, terms_s={"compute": float("nan")})
    text = StepBreakdown(cores=1, processes=1, devices=(device,)).to_json()
    tree = json.loads(text, parse_constant=refuse)
    assert tree["devices"][0]["terms_s"] == {"compute": None}
