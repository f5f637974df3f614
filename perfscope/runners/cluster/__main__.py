"""`python -m perfscope.runners.cluster`."""

from __future__ import annotations

import sys

from perfscope.runners.cluster.launcher import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
