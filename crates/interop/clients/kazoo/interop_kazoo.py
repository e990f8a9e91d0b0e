"""Tests kazoo against a cluster: prints one line per check, then their count. `INTEROP_*` gives the cluster."""

import logging
import sys

# Each registers its checks.
import locks  # noqa: F401
import recipes  # noqa: F401
import tree  # noqa: F401
import trouble  # noqa: F401
import watches  # noqa: F401
from harness import main

# kazoo logs each broken connection, which some checks cause.
logging.getLogger("kazoo").setLevel(logging.CRITICAL)

if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1] if len(sys.argv) > 1 else None) else 0)
