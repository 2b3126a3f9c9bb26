"""The process `equipoise`, and `python -m equipoise` where no such script is on the path."""

from __future__ import annotations

import sys


def run() -> None:
    """The command line. It is imported in here, so that an interrupt while Python still reads
    modules ends as one at any other time does.
    """
    try:
        from equipoise.cli import main
    except KeyboardInterrupt:
        sys.stderr.write("equipoise: interrupted\n")
        sys.exit(130)
    main()


if __name__ == "__main__":
    run()
