"""What the wheel is made of.

`events`, `statemachine`, `assignors` and `replay` stand at the top of the repository and are
packages of `equipoise`. For development the folder `equipoise` has links to them. A wheel gets the
folders themselves: hatchling takes each file once, and would leave out what a link leads to.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LINKED = ("assignors", "events", "replay", "statemachine")


class LinkedPackages(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the linked folders into the standard wheel; an editable one leads to the repository,
    where the links are.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"].update({f"{self.root}/{name}": f"equipoise/{name}" for name in LINKED})
