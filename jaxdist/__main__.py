"""`python -m jaxdist` is `jaxdist`."""

import sys

from jaxdist.launch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
