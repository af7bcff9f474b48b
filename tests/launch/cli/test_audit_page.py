"""docs/audit.md shows a script and what the command says of it: both are true."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "audit.md").read_text()


def test_the_script_of_the_page_prints_what_the_page_shows(job, tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```text\n(my_script.py:step\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_script.py").write_text(script)
    code, out, err = job.run("audit", f"{tmp_path}/my_script.py:step")
    assert (code, err) == (1, "")
    said = [line for line in shown.splitlines() if "found:" in line or "all-" in line]
    for line in said:
        words = line.replace("my_script.py", f"{tmp_path}/my_script.py").split()
        assert words in [line.split() for line in out.splitlines()], line
