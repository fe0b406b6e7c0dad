"""``python -m triwire``, the same as ``triwire``."""

import sys

from triwire.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
