"""The script that spark-submit runs: ``spark-submit ... $(equipoise spark --script) verify
archive/``. It is alone in its folder, because Python searches that folder for modules first."""

import sys

from equipoise.cli.spark import spark

if __name__ == "__main__":
    spark.main(sys.argv[1:], prog_name="equipoise spark")
