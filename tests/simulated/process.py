"""Its place for the files that have not followed `equipoise.testing.simulated.process` yet."""

from equipoise.testing.simulated.process import SimulatedProcess

__all__ = ["SimulatedProcess"]
