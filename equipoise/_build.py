"""Which commit this build was made from."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

COMMIT = "commit.txt"
"""In a wheel and in a source distribution, beside this file; hatch_build.py writes it."""


def commit(package: Path = Path(__file__).parent) -> str:
    """Returns the commit, abbreviated; "": unknown. Of a checkout, the one that is checked out."""
    try:
        return (package / COMMIT).read_text(encoding="ascii").strip()
    except OSError:
        pass
    if not (package.parent / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(package.parent), "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def docs_url() -> str:
    """Returns where this release's pages are; "": it was built elsewhere than it is published."""
    named = metadata.metadata("equipoise").get_all("Project-URL") or ()
    return next((url for label, _, url in (each.partition(", ") for each in named) if label == "Documentation"), "")


def version_text() -> str:
    """``equipoise 0.1.0 (0a1b2c3d4e5f)``."""
    made_from = commit()
    return f"equipoise {metadata.version('equipoise')}{f' ({made_from})' if made_from else ''}"
