"""`equipoise spark script`: prints the path of the file that spark-submit runs."""

from __future__ import annotations

from pathlib import Path

import equipoise
from equipoise.cli.command import command
from equipoise.cli.screen import Screen


@command("script", short_help="Print the path of the file for spark-submit.")
def script(screen: Screen) -> None:
    """Print the path of the file to give to spark-submit. The arguments after it are those of
    `equipoise spark`.

    \b
    Examples:
      spark-submit --master yarn $(equipoise spark script) verify /data/archive
    """
    path = str(Path(equipoise.__file__).parent / "spark_submit" / "equipoise_spark.py")
    screen.answer({"script": path}, path)
