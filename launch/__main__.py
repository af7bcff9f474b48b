"""`python -m jaxdist.launch`: the command line without an installed script."""

import sys

from jaxdist.launch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
