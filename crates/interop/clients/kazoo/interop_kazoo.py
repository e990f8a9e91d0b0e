"""Python's kazoo against a cluster: one line for each check, then the count. `INTEROP_*` says where the cluster is."""

import logging
import sys

# Each enters its checks.
import locks  # noqa: F401
import recipes  # noqa: F401
import tree  # noqa: F401
import trouble  # noqa: F401
import watches  # noqa: F401
from harness import main

# kazoo logs each connection that breaks, which is what some checks are about.
logging.getLogger("kazoo").setLevel(logging.CRITICAL)

if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1] if len(sys.argv) > 1 else None) else 0)
