"""`python -m hotdelta.cli`, as `python -m hotdelta`."""

import sys

from hotdelta.cli import main

if __name__ == "__main__":
    sys.exit(main())
