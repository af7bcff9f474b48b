"""Exit codes of jaxdist commands, which launchers and schedulers act on."""

from typing import Final

EXIT_FAILED: Final = 1
"""It failed; another attempt may succeed."""
EXIT_BAD_INPUT: Final = 2
"""The command or its configuration was refused: every attempt would be."""
EXIT_RESTART: Final = 75
"""It ended in good order and is to be started again (EX_TEMPFAIL of sysexits.h)."""
EXIT_INTERRUPTED: Final = 130
"""It was interrupted from the keyboard: 128 and the number of SIGINT."""
