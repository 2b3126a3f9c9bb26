"""Log messages as JSON documents, one a line."""

from __future__ import annotations

import json
import logging


class JsonFormatter(logging.Formatter):
    """Formats each log message as one JSON document (equipoise/schemas/worker.json). A message
    about a decision has its codes and numbers in the attribute `decided`.
    """

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time_ms": int(record.created * 1_000),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "error": self.formatException(record.exc_info) if record.exc_info else None,
            "decided": getattr(record, "decided", None),
        }
        return json.dumps(document)
