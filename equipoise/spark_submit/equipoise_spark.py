"""What spark-submit runs: ``spark-submit ... $(equipoise spark script) verify archive/``. It stands
alone in its folder, which Python looks in first."""

import sys

from equipoise.cli.spark import spark

if __name__ == "__main__":
    spark.main(sys.argv[1:], prog_name="equipoise spark")
