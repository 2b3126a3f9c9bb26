"""The application on Faust with equipoise's assignor, and nothing else changed."""

from __future__ import annotations

from bench.peers.apps.faust_app import app_of
from bench.peers.apps.given import given

if __name__ == "__main__":
    parameters = given()
    parameters.state.mkdir(parents=True, exist_ok=True)
    app_of(parameters, PartitionAssignor="equipoise.faust:Assignor").main()
