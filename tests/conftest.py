"""What every test shares: hypothesis profiles, and `--rewrite` for golden files.

Hypothesis runs under one of two profiles, chosen by the environment variable CI:

`ci` (CI is set): derandomized, so that a change is judged by the same examples every time and a red
build is always the change's doing. `dev` (otherwise): random examples, kept failures in
.hypothesis/; new corners are found here, and by `make soak`, which prints its seeds.

Neither has a deadline: two shared cores say nothing about speed. Benchmarks do that, by ratios.
"""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

_SLOW_IS_NO_FAULT = [hypothesis.HealthCheck.too_slow]

hypothesis.settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=100, print_blob=True, database=None, suppress_health_check=_SLOW_IS_NO_FAULT
)
hypothesis.settings.register_profile("dev", deadline=None, max_examples=100, print_blob=True, suppress_health_check=_SLOW_IS_NO_FAULT)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write golden files anew from what the code gives now; read the diff before committing")


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in its background deaf to it, and children inherit that
    if config.getoption("--rewrite") and os.environ.get("CI"):
        raise pytest.UsageError("--rewrite is refused when CI is set: golden files are rewritten by people, who read the diff")


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """True: golden files are to be written anew instead of compared."""
    return bool(request.config.getoption("--rewrite"))
