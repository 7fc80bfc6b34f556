"""`python -m server.front`: what `server --front-ends N` starts N times."""

import sys

from server.front.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
