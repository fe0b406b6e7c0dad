"""``python -m training``."""

import sys

from models import allocator
from models.cores import num_cores
from training.cli import main

if __name__ == "__main__":
    allocator.keep_memory(1 + num_cores())
    sys.exit(main())
