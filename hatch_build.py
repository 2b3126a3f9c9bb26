"""What a wheel contains, and the addresses in its metadata.

`events`, `statemachine`, `assignors` and `replay` are folders at the top of the repository and
packages of `equipoise`. For development the folder `equipoise` has links to them. A wheel gets the
folders themselves: hatchling takes each file once, and would leave out what a link leads to.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LINKED = ("assignors", "events", "replay", "statemachine")


class LinkedPackages(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the linked folders into the standard wheel; an editable one leads to the repository,
    where the links are.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"].update({f"{self.root}/{name}": f"equipoise/{name}" for name in LINKED})


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
