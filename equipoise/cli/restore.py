"""`equipoise archive ARCHIVE --to KAFKA` writes a log back into new topics of Kafka."""

from __future__ import annotations

import attrs

from equipoise.cli.exit_codes import resumable
from equipoise.cli.screen import Screen
from equipoise.events.errors import InputError
from equipoise.log import Log
from equipoise.log.stored import StoredLog
from equipoise.replay.wording import counted


def restore(screen: Screen, log: Log, location: str, replication: int) -> None:
    """Makes the topics of `location` and writes the archive into them, or goes on where a killed
    run ended. `replication`: copies of each topic, 0: three, or one for each broker. Raises
    InputError.
    """
    from equipoise.log.kafka.log_restore import restore
    from equipoise.log.parquet.log import ArchiveLog

    if isinstance(log, ArchiveLog):
        sources: dict[int, StoredLog] = {partition: log.part(partition, files=files.strict()) for partition, files in log.files().items()}
    elif isinstance(log, StoredLog):
        sources = {0: log}
    else:
        raise InputError(f"{log.location}: is no copy of a log; name a file or an archive")

    def there() -> str:
        return f"{location} is not led before it is whole; the same command resumes there"

    count = sum(source.count() for source in sources.values())
    with resumable(location, there), screen.progress("restoring, in records", count) as advance:
        done = restore(sources, location, replication=replication, advance=advance)
    what = f"{counted(done.facts, 'fact')} and {counted(done.decisions, 'decision')} in {counted(done.partitions, 'partition')}"
    screen.answer(attrs.asdict(done), f"{what} are in {location} and equal the archive; {counted(done.written, 'record')} written by this run")
