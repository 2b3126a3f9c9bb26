"""`equipoise spark script`: where the file is that spark-submit runs."""

from __future__ import annotations

from pathlib import Path

import equipoise
from equipoise.cli.command import command
from equipoise.cli.screen import Screen


@command("script", short_help="The file that spark-submit runs.")
def script(screen: Screen) -> None:
    """Prints the path of the file to give to spark-submit; what follows it is what follows
    `equipoise spark`.

    \b
    Examples:
      spark-submit --master yarn $(equipoise spark script) verify /data/archive
    """
    path = str(Path(equipoise.__file__).parent / "spark_submit" / "equipoise_spark.py")
    screen.answer({"script": path}, path)
