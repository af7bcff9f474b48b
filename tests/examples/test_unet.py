"""The U-Net of the examples marks pixels, on images that are cut."""

import re
from pathlib import Path

import pytest

UNET = Path(__file__).parents[2] / "examples" / "unet.py"


@pytest.mark.timeout(300)  # 10 s of a machine that does nothing else
def test_it_marks_the_rings(job, tmp_path):
    program = tmp_path / "unet.py"
    program.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{UNET.read_text()}")
    child = job.python(program)
    out, err = child.communicate()
    assert child.returncode == 0, err
    assert "data 2 x spatial_h 2" in out
    (dice,) = re.findall(r"^Dice of the held-out rings: (\S+)", out, re.MULTILINE)
    assert float(dice) > 0.9
