"""The history of a real Kafka Streams group, read from its recorded files into facts: `import_history`."""

from __future__ import annotations

from replay.kafka_streams.importer import FactSink, ImportSummary, import_history
from replay.kafka_streams.options import ImportOptions, options_of
from replay.kafka_streams.source import Source, shipped_runs
from replay.kafka_streams.wire import WireError

__all__ = ["FactSink", "ImportOptions", "ImportSummary", "Source", "WireError", "import_history", "options_of", "shipped_runs"]
