"""Makes a release up to the step that publishes it: `make release VERSION=0.1.0`.

It writes the version and the changelog, keeps what this build stores for the tests of later ones
(`tools/stored.py`), builds the source distribution and, from that, the wheel, and installs the
wheel in an empty environment of each Python that this machine has. Each must know its version and
verify the recorded groups of `equipoise demo`. Then it commits, and tags the commit with the text
of the changelog. Pushing the tag publishes: that is left to a person.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
VERSION = re.compile(r"\d+\.\d+\.\d+(rc\d+)?")
_IN_PROJECT = re.compile(r'^version = "[^"]+"$', re.MULTILINE)
_IN_JAR = re.compile(r"(<artifactId>(?:streams|broker)-assignor</artifactId>\s*<version>)[^<]+(</version>)")


class NotReadyError(Exception):
    """Why there can be no release now."""


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def check_ready(version: str) -> None:
    """Raises NotReadyError, with the fix, before anything is written."""
    if not VERSION.fullmatch(version):
        raise NotReadyError(f"VERSION={version}: write it as 1.2.3 or 1.2.3rc1")
    changed = git("status", "--porcelain")
    if changed:
        raise NotReadyError(f"the checkout has changes that are not committed: commit or remove them\n{changed}")
    if git("tag", "--list", f"v{version}"):
        raise NotReadyError(f"the tag v{version} exists: name the next version")


def set_version(version: str) -> None:
    """In the project and in the assignors for Kafka Streams and for brokers."""
    project, jars = ROOT / "pyproject.toml", [ROOT / "java" / name / "pom.xml" for name in ("streams-assignor", "broker-assignor")]
    for path, pattern, to in ((project, _IN_PROJECT, f'version = "{version}"'), *((jar, _IN_JAR, rf"\g<1>{version}\g<2>") for jar in jars)):
        text, found = pattern.subn(to, path.read_text(encoding="utf-8"), count=1)
        if not found:
            raise NotReadyError(f"{path.relative_to(ROOT)}: has no version where it is looked for")
        path.write_text(text, encoding="utf-8")


def notes_of(changelog: str, version: str) -> str:
    """The entry of one version in CHANGELOG.md, without its heading."""
    found = re.search(rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise NotReadyError(f"CHANGELOG.md has no entry for {version}: add fragments to changes/, or write it")
    return found[1].strip()


def write_changelog(version: str) -> str:
    """Moves the fragments into CHANGELOG.md, if there are some; returns the version's entry."""
    if any((ROOT / "changes").glob("+*.md")):
        subprocess.run([sys.executable, "-m", "towncrier", "build", "--yes", "--version", version], cwd=ROOT, check=True, capture_output=True)
    return notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)


def build(to: Path) -> tuple[Path, Path]:
    """Builds the source distribution, and the wheel from what it holds; returns both."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(to)], cwd=ROOT, check=True)
    (sdist,) = to.glob("equipoise-*.tar.gz")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(to), str(sdist)], check=True)
    (wheel,) = to.glob("equipoise-*.whl")
    return sdist, wheel


def pythons() -> Iterator[tuple[str, str]]:
    """Version and interpreter of each Python that is here: on the PATH, or in pyenv's folder."""
    for version in PYTHONS:
        installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        found = str(installed[-1]) if installed else shutil.which(f"python{version}")
        if found is not None:
            yield version, found


def try_wheel(wheel: Path, python: str, version: str) -> None:
    """Installs the wheel in an empty environment, and runs the demo there. Raises NotReadyError."""
    with tempfile.TemporaryDirectory() as folder:
        run = _in(Path(folder))
        run(python, "-m", "venv", "venv")
        own = str(Path(folder) / "venv" / "bin" / "python")
        run(own, "-m", "pip", "install", "-q", f"{wheel}[lead]")
        said = run(own, "-m", "equipoise", "--version")
        if said.split()[:2] != ["equipoise", version]:
            raise NotReadyError(f"{python}: the installed wheel says {said.strip()!r}, not version {version}")
        if "identical" not in run(own, "-m", "equipoise", "demo", "--out", "demo"):
            raise NotReadyError(f"{python}: the demo does not verify its groups")


def _in(folder: Path) -> Callable[..., str]:
    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotReadyError(f"`{' '.join(words)}` ended with {done.returncode}:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
        return done.stdout

    return run


@click.command()
@click.argument("version")
@click.option("--dry-run", is_flag=True, help="Build and try what is checked out; write, commit and tag nothing.")
def main(version: str, dry_run: bool) -> None:
    """Makes the release VERSION up to the step that publishes it."""
    try:
        release(version, dry_run=dry_run)
    except NotReadyError as error:
        raise click.ClickException(str(error)) from None


def release(version: str, *, dry_run: bool) -> None:
    """Raises NotReadyError."""
    notes = ""
    if not dry_run:
        check_ready(version)
        set_version(version)
        notes = write_changelog(version)
        kept = ROOT / "tests" / "data" / "stored" / version
        shutil.rmtree(kept, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "tools.stored", str(kept)], cwd=ROOT, check=True)
        git("add", "--all")
        git("commit", "--allow-empty", "-m", f"Release {version}")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    sdist, wheel = build(dist)
    tried = []
    for number, python in pythons():
        click.echo(f"Python {number}: installing {wheel.name} in an empty environment, and running the demo")
        try_wheel(wheel, python, version)
        tried.append(number)
    missing = [number for number in PYTHONS if number not in tried]
    not_here = f"; not here: {', '.join(missing)}" if missing else ""
    click.echo(f"{sdist.name} and {wheel.name} in dist/, tried on Python {', '.join(tried) or 'none'}{not_here}")
    if dry_run:
        return
    git("tag", "--annotate", f"v{version}", "--cleanup=verbatim", "-m", f"equipoise {version}\n\n{notes}")
    click.echo(f"committed and tagged v{version}. Nothing was published: `git push origin HEAD v{version}` does that")


if __name__ == "__main__":
    main()
