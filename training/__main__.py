"""``python -m training``."""

import sys

from models import allocator
from training.cli import main

if __name__ == "__main__":
    allocator.keep_memory()
    sys.exit(main())
