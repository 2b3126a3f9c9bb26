"""The wheel: one whole package that collides with no other."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import equipoise

ROOT = Path(__file__).parents[2]
LINKED = ("assignors", "events", "replay", "statemachine")


def build(target: str, to: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(to)]
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    (built,) = to.glob("equipoise-*")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def sources() -> set[str]:
    """Returns every tracked file of the packages, by its name in a wheel."""
    folders = [ROOT / "equipoise", *(ROOT / name for name in LINKED)]
    listed = subprocess.run(["git", "ls-files", *map(str, folders)], check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()
    files = [name for name in listed if not (ROOT / name).is_symlink()]
    return {name if name.startswith("equipoise/") else f"equipoise/{name}" for name in files}


def head() -> str:
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def test_wheel_has_one_package_with_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in names} == {"equipoise"}
    assert len(names) == len(set(names))
    assert set(names) == sources() | {"equipoise/commit.txt"}
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("equipoise/commit.txt").decode().strip() == head()


def test_wheel_built_by_actions_names_the_urls_of_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "streams/equipoise")
    with zipfile.ZipFile(build("wheel", tmp_path)) as archive:
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    urls = [line.removeprefix("Project-URL: ") for line in metadata.splitlines() if line.startswith("Project-URL: ")]
    assert "Homepage, https://github.example/streams/equipoise" in urls
    assert "Issues, https://github.example/streams/equipoise/issues" in urls


def test_wheel_of_the_sdist_is_the_same(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "again")]
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=unpacked)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(next((tmp_path / "again").iterdir())) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
        assert one.read("equipoise/commit.txt") == other.read("equipoise/commit.txt")


def test_wheel_runs_beside_a_file_of_the_name_of_an_inner_package(wheel: Path, tmp_path: Path) -> None:
    """Installs it in a new virtual environment that borrows this one's dependencies."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed))
    (tmp_path / "here").mkdir()
    for name in LINKED:
        (tmp_path / "here" / f"{name}.py").write_text("raise RuntimeError('this file is not equipoise')\n")
    python = tmp_path / "venv" / "bin" / "python"

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "here", env=environment, check=False, timeout=120)

    where = run("-c", "import equipoise.events as events, equipoise; print(events.__file__, equipoise.__file__)")
    assert where.stdout.split() == [str(packages / "equipoise" / "events" / "__init__.py"), str(packages / "equipoise" / "__init__.py")], where.stderr
    assert run("-m", "equipoise", "--version").stdout == f"equipoise {equipoise.__version__} ({head()})\n"
    done = run("-m", "equipoise", "demo", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "IDENTICAL" in done.stdout.upper()
