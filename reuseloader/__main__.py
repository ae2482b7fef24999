"""``python -m reuseloader``: see `reuseloader.cli`."""

import sys

from reuseloader.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
