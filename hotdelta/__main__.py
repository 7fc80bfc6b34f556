"""`python -m hotdelta` is the command `hotdelta`."""

import sys

from hotdelta.cli import main

if __name__ == "__main__":
    sys.exit(main())
