"""Public names that a package loads when they are first used.

The solver behind most names takes longer to load than `equipoise --help` may take.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from equipoise._extras import needed_by


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The module ``__getattr__`` of `package`. `modules`: public name -> the module that defines
    it. A name whose module misses an extra raises InputError.
    """

    def load(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needed_by(f"{package}.{name}"):
            return getattr(importlib.import_module(module), name)

    return load
