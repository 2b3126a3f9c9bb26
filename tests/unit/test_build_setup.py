"""The build: CI rewrites no golden file and draws the same examples every time, .ci/run runs the
tests, versions are pinned.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import SLOW, TURNS

ROOT = Path(__file__).parents[2]
WITHOUT_CI = {name: value for name, value in os.environ.items() if name not in ("CI", "EXAMPLES") and not name.startswith("PYTEST_")}


def pytest_process(*args: str, ci: bool, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**WITHOUT_CI, **variables, **({"CI": "true"} if ci else {})}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=120)


def test_rewriting_golden_files_is_refused_in_ci() -> None:
    done = pytest_process("--rewrite", "--collect-only", "tests/unit/test_build_setup.py", ci=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--rewrite is refused when CI is set" in done.stderr


def test_rewriting_golden_files_is_allowed_elsewhere() -> None:
    assert pytest_process("--rewrite", "--collect-only", "tests/unit/test_build_setup.py", ci=False).returncode == 0


@pytest.mark.parametrize(("examples", "ci", "derandomized"), [(None, True, True), (None, False, True), ("new", False, False)])
def test_hypothesis_draws_new_examples_only_when_asked(examples: str | None, ci: bool, derandomized: bool, tmp_path: Path) -> None:
    probe = tmp_path / "test_probe.py"
    probe.write_text(f"import hypothesis\n\ndef test_probe():\n    assert hypothesis.settings().derandomize is {derandomized}\n")
    given = {"EXAMPLES": examples} if examples else {}
    done = pytest_process("--rootdir", str(ROOT), "--confcutdir", str(ROOT), "-p", "tests.conftest", str(probe), ci=ci, **given)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("ci", "code"), [(True, pytest.ExitCode.TESTS_FAILED), (False, pytest.ExitCode.OK)])
def test_skipped_test_fails_in_ci_alone(ci: bool, code: pytest.ExitCode, tmp_path: Path) -> None:
    probe = tmp_path / "test_probe.py"
    probe.write_text("import pytest\n\ndef test_probe():\n    pytest.skip('no broker')\n")
    done = pytest_process("--rootdir", str(ROOT), "--confcutdir", str(ROOT), "-p", "tests.conftest", str(probe), ci=ci)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("skipped, which is a failure in CI: " in done.stdout) is ci


def test_skipped_module_fails_in_ci(tmp_path: Path) -> None:
    probe = tmp_path / "test_probe.py"
    probe.write_text("import pytest\n\npytest.importorskip('not_installed')\n")
    done = pytest_process("--rootdir", str(ROOT), "--confcutdir", str(ROOT), "-p", "tests.conftest", str(probe), ci=True)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert "could not import 'not_installed'" in done.stdout


def test_tests_of_one_group_run_in_one_process(tmp_path: Path) -> None:
    probe = tmp_path / "test_probe.py"
    probe.write_text(
        "import os\nimport pytest\n\n@pytest.mark.xdist_group('spark')\n@pytest.mark.parametrize('number', range(6))\n"
        f"def test_probe(number):\n    open({str(tmp_path / 'processes')!r}, 'a').write(f'{{os.getpid()}} ')\n"
    )
    done = pytest_process("-n", "2", "--dist", "loadgroup", "--rootdir", str(ROOT), "--confcutdir", str(tmp_path), str(probe), ci=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(set((tmp_path / "processes").read_text().split())) == 1


@pytest.mark.slow
def test_slow_tests_take_turns(tmp_path: Path) -> None:
    probe = tmp_path / "test_probe.py"
    probe.write_text(
        "import pytest\n\n@pytest.mark.slow\n@pytest.mark.parametrize('number', range(20))\ndef test_slow(number): ...\ndef test_quick(): ...\n"
    )
    ran = []
    for turn in range(TURNS):
        done = pytest_process(
            "-vv", "--turn", str(turn), "--rootdir", str(ROOT), "--confcutdir", str(ROOT), "-p", "tests.conftest", str(probe), ci=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        ran.append(set(re.findall(r"::(test_\S+) PASSED", done.stdout)))
    assert set.intersection(*ran) == {"test_quick"}
    assert all(1 < len(each) < 21 for each in ran)
    assert len(set.union(*ran)) == 21


def test_ci_runs_every_test_and_measures_the_coverage_of_the_pure_packages() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    sample = 'mutation OPTIONS="--sample 40 --turn $turn"'
    assert re.findall(r"^make (.+)", script.read_text(), re.MULTILINE) == ['test ALL=1 TURN="$turn"', sample, "soak WORKERS=2 SEEDS=30 STEPS=1"]
    recipe = subprocess.run(["make", "--dry-run", "test", "ALL=1", "TURN=7"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    live, pure, other = (line.split() for line in recipe.splitlines() if " -m pytest " in line)
    assert not [word for word in live + pure + other if word == "-k" or "not" in word]
    assert live[live.index("-m", 3) + 1] == '""'
    assert pure.count("-m") == other.count("-m") == 1  # python -m pytest, no marker expression
    assert "--cov" in pure
    assert [line.count("--turn") for line in (live, pure, other)] == [1, 1, 1]
    ignored = {word.removeprefix("--ignore=").rstrip(";") for word in other if word.startswith("--ignore=")}
    assert ignored == {word.rstrip(";") for word in live + pure if word.startswith("tests/")}


def test_dependencies_are_pinned_within_their_bounds() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *(text for extra in ("dev", "docs", "lead", "member") for text in extras[extra])]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), text
    for text in extras["spark"]:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert name not in pinned or requirement.specifier.contains(pinned[name]), text


def test_solver_is_pinned_to_one_version() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["lead"]
    assert f"ortools=={metadata.version('ortools')}" in dependencies


def test_constraints_name_no_index_or_url() -> None:
    assert not re.search(r"://|^-|@", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def test_slow_tests_that_are_named_exist() -> None:
    named = SLOW.read_text(encoding="utf-8").splitlines()
    assert named == sorted(set(named))
    missing = [
        name
        for name in named
        for file, _, function in [name.partition("[")[0].partition("::")]
        if not re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not missing, "measure again: pytest --cpu FILE"
