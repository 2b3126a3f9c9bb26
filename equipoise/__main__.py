"""`python -m equipoise`: the command line, where no script `equipoise` is on the path."""

from __future__ import annotations

from equipoise.cli import main

if __name__ == "__main__":
    main()
