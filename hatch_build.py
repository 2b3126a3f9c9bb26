"""What a wheel contains, the commit that it is made from, and the addresses in its metadata.

`events`, `statemachine`, `assignors` and `replay` are folders at the top of the repository and
packages of `equipoise`. For development the folder `equipoise` has links to them. A wheel gets the
folders themselves: hatchling takes each file once, and would leave out what a link leads to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

COMMIT = "equipoise/commit.txt"
LINKED = ("assignors", "events", "replay", "statemachine")


class LinkedPackages(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the linked folders into the standard wheel; an editable one leads to the repository,
    where the links are.
    """

    PLUGIN_NAME = "custom"
    _made: Path | None = None
    """Folder with the file that names the commit; None: it was there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        if self.target_name == "wheel":
            build_data["force_include"].update({f"{self.root}/{name}": f"equipoise/{name}" for name in LINKED})
        if not (Path(self.root) / COMMIT).exists():  # in a source distribution it is there
            self._made = Path(tempfile.mkdtemp())
            (self._made / "commit.txt").write_text(_commit(self.root) + "\n")
            build_data["force_include"][str(self._made / "commit.txt")] = COMMIT

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._made is not None:
            shutil.rmtree(self._made)


def _commit(root: str) -> str:
    """The commit, abbreviated; "": unknown. A container is built without .git, and is told it."""
    try:
        command = ["git", "-C", root, "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("EQUIPOISE_COMMIT", "")[:12]


class ProjectUrls(MetadataHookInterface):
    """Project URLs of the repository that builds the release, which GitHub Actions names in
    GITHUB_SERVER_URL and GITHUB_REPOSITORY. A build elsewhere has none.
    """

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("GITHUB_REPOSITORY")
        if not repository:
            return
        home = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}"
        metadata["urls"] = {
            "Homepage": home,
            "Documentation": f"{home}/tree/main/docs",
            "Changelog": f"{home}/blob/main/CHANGELOG.md",
            "Issues": f"{home}/issues",
        }
