"""Source lines: the line of Python that an instruction of a compiled program is from.

A program prints them with each instruction (`source_file`, `source_line`), or once, as
tables of files, of locations in them, and of frames of the call stack.
"""

import re
from typing import Final

_DIRECT: Final = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_FRAME: Final = re.compile(r"stack_frame_id=(\d+)")
_FILE: Final = re.compile(r'^(\d+) "(.*)"$')
_LOCATION: Final = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_STACK: Final = re.compile(r"^(\d+) \{file_location_id=(\d+)")


class SourceLocations:
    """The tables of one program.

    Args:
        text: `compiled.as_text()`.
    """

    def __init__(self, text: str) -> None:
        files: dict[str, str] = {}
        places: dict[str, str] = {}
        self._frames: dict[str, str] = {}
        table = ""
        for line in text.splitlines():
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                table = line
            elif table == "FileNames" and (found := _FILE.match(line)):
                files[found[1]] = found[2]
            elif found := _LOCATION.match(line):
                places[found[1]] = f"{files.get(found[2], '?')}:{found[3]}"
            elif found := _STACK.match(line):
                self._frames[found[1]] = places.get(found[2], "")
            elif line.startswith(("%", "ENTRY")):
                break

    def locate(self, instruction: str) -> str:
        """Return `file:line` of an instruction, or nothing where none is known.

        >>> line = '%a = f32[] add(), {source_file="a.py" source_line=3}'
        >>> SourceLocations("").locate(line)
        'a.py:3'
        """
        if found := _DIRECT.search(instruction):
            return f"{found[1]}:{found[2]}"
        frame = _FRAME.search(instruction)
        return self._frames.get(frame[1], "") if frame else ""
