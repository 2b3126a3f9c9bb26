"""What `python -m equipoise.new` writes works as written, and `equipoise.start` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.events.errors import InputError
from equipoise.new import FILES, write
from equipoise.start import load

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_its_test_passes_as_written_and_its_types_hold(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "equipoise.new", "page-views"]
    made = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert set(made.stdout.split("\n\n")[0].splitlines()) == {f"page-views/{file}" for file in FILES}
    folder = tmp_path / "page-views"
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert "1 passed" in tested.stdout, tested.stdout
    command = [sys.executable, "-m", "mypy", "--strict", str(folder / "app.py")]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Success" in checked.stdout, checked.stdout
    assert "@" not in "".join(path.read_text() for path in folder.iterdir() if path.is_file())


def test_dockerfile_copies_what_is_there_and_starts_it(tmp_path: Path) -> None:
    files = {path.name for path in write("views", tmp_path)}
    lines = (tmp_path / "views" / "Dockerfile").read_text().splitlines()
    assert {line.split()[1] for line in lines if line.startswith("COPY")} <= files
    assert lines[-1] == 'CMD ["python", "-m", "equipoise.start", "app.py"]'


def test_name_that_is_none_and_folder_that_is_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"NAME: 'Page Views' is none; write lower-case letters"):
        write("Page Views", tmp_path)
    write("views", tmp_path)
    with pytest.raises(InputError, match="views is there already; take another name"):
        write("views", tmp_path)


@pytest.mark.parametrize(("text", "says"), [(None, "is no file"), ("x = 1", "has no `member`"), ("def member(): return 1", "has no `member`")])
def test_file_without_a_member_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, says: str) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / f"app_{abs(hash(text))}.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=says):
        load(file)


def test_application_in_a_file_runs_and_its_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("from equipoise.events.errors import InputError\n\n\ndef refuse(): raise InputError('LOG: none')\n")
    (tmp_path / "app.py").write_text("import beside\nbeside.refuse()\n")
    command = [sys.executable, "-m", "equipoise.start", "app.py"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (2, "equipoise.start: LOG: none\n")
