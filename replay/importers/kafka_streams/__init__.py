"""Imports the history of a real Kafka Streams group from its recorded files: `import_history`."""

from __future__ import annotations

from equipoise.replay.importers.kafka_streams.import_options import ImportOptions, options_of
from equipoise.replay.importers.kafka_streams.importer import FactSink, ImportSummary, import_history
from equipoise.replay.importers.kafka_streams.offsets_records import WireError
from equipoise.replay.importers.kafka_streams.source import StreamsSource, shipped_runs

__all__ = ["FactSink", "ImportOptions", "ImportSummary", "StreamsSource", "WireError", "import_history", "options_of", "shipped_runs"]
