"""``python -m softs_fast``: the same as the command ``softs-fast``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
