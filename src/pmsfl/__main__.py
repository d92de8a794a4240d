"""`pmsfl` and `python -m pmsfl`."""

from __future__ import annotations

import sys
from typing import NoReturn

from pmsfl import commands
from pmsfl.cli import ABOUT, COMMANDS


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        code = commands.main(COMMANDS, sys.argv[1:], ABOUT)
    except KeyboardInterrupt:  # before or after a command
        code = commands.INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
