"""``python -m rlrun``: the ``rlrun`` command."""

import sys

from rlrun.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
