"""Times of lines, in the forms that loggers, containers and syslog write."""

from __future__ import annotations

import datetime as dt
import re

_MONTHS = {name: number for number, name in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1)}
_MONTH = "(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_CLOCK = r"(?P<h>[0-2][0-9]):(?P<m>[0-5][0-9]):(?P<s>[0-6][0-9])(?:[.,](?P<f>[0-9]{1,9}))?"
_ZONE = r"(?P<zone>Z|UTC|GMT| UTC| ?[+-][0-9]{2}:?[0-9]{2}(?![0-9:-]))?"
_ISO = re.compile(rf"(?<![0-9])(?P<y>(?:19|20)[0-9]{{2}})[-/.]?(?P<mo>[01][0-9])[-/.]?(?P<d>[0-3][0-9])[T _]?{_CLOCK}{_ZONE}")
_BASIC = re.compile(
    r"(?<![0-9])(?P<y>20[0-9]{2})(?P<mo>[01][0-9])(?P<d>[0-3][0-9])T?(?P<h>[0-2][0-9])(?P<m>[0-5][0-9])(?P<s>[0-5][0-9])[.,]?(?P<f>[0-9]{1,9})?"
)
_DAY_FIRST = re.compile(rf"(?<![0-9])(?P<d>[0-3]?[0-9])[- /]{_MONTH}[- /](?P<y>20[0-9]{{2}})[: ]{_CLOCK}{_ZONE}")
_SLASHES = re.compile(rf"(?<![0-9])(?P<a>[0-3]?[0-9])[/.](?P<b>[0-3]?[0-9])[/.](?P<y>20[0-9]{{2}}),? {_CLOCK}{_ZONE}")
_SYSLOG = re.compile(rf"{_MONTH} +(?P<d>[0-3]?[0-9]) {_CLOCK}")
_LIBRDKAFKA = re.compile(r"%[0-9]\|(?P<seconds>[0-9]{9,10})\.(?P<f>[0-9]{3})\|")
_EPOCH = re.compile(r"^[\[{ ]*(?:ts=)?\"?(?P<seconds>1[0-9]{9})[.]?(?P<f>[0-9]{3,9})?\"?\b")
_KLOG = re.compile(r"^[IWEF](?P<mo>[01][0-9])(?P<d>[0-3][0-9]) (?P<h>[0-2][0-9]):(?P<m>[0-5][0-9]):(?P<s>[0-5][0-9])\.(?P<f>[0-9]+)")
_CLOCK_ONLY = re.compile(rf"(?<![0-9:.]){_CLOCK}(?![0-9:])")
_DATE = re.compile(
    rf"(?:[A-Z][a-z]{{2}},? +)?(?:{_MONTH} +(?P<d>[0-3]?[0-9])|(?P<d2>[0-3]?[0-9]) {_MONTH.replace('month', 'month2')} (?P<y2>20[0-9]{{2}}))"
    rf",? +{_CLOCK}"
    r"(?: (?P<half>AM|PM))?(?: [A-Z]{1,5}| [+-][0-9]{2}:?[0-9]{0,2})?(?: (?P<y>20[0-9]{2}))?"
)
"""What ``date`` prints."""
_HALF = re.compile(r" ?([AaPp])\.?[Mm]\b")
_WITHIN = 140
_DAY_MS = 86_400_000


class Clock:
    """Reads the times of one file's lines, in order. `year`: for forms without one. Times without a
    zone are taken as UTC. `has_date`: whether a line told the day.
    """

    def __init__(self, year: int = 1970) -> None:
        self._year = year
        self._last_text, self._last_ms = "", 0
        self._previous_ms = -1
        self.has_time = self.has_date = self.has_zone = False

    def read(self, text: str) -> int | None:
        """The time (ms since 1970) that a line begins with; None: it has none."""
        head = text[:_WITHIN]
        match = _ISO.search(head) or _LIBRDKAFKA.search(head)
        if match is None:
            if not any(each.isdigit() for each in head[:40]):
                return None
            match = _DAY_FIRST.search(head) or _SLASHES.search(head) or _SYSLOG.search(head) or _EPOCH.search(head) or _KLOG.search(head)
            match = match or _BASIC.search(head[:40]) or _CLOCK_ONLY.search(head[:60])
            if match is None:
                return None
        elif match.re is _ISO and match["zone"] is None and match.end() < 60 and head.startswith(match[0][:10]):
            later = _ISO.search(head, match.end())  # docker, or a container's own prefix, with a zone
            match = later if later is not None and later["zone"] else match
        try:
            at_ms = self._of(match)
        except (ValueError, OverflowError):
            return None
        if (half := _HALF.match(head, match.end())) is not None and "h" in match.groupdict():
            at_ms += _DAY_MS // 2 * ((half[1] in "Pp") - (match["h"] == "12"))
        self.has_time = True
        self._previous_ms = at_ms
        return at_ms

    def _of(self, match: re.Match[str]) -> int:
        read = match.groupdict()
        fraction = int(((read.get("f") or "") + "000")[:3])
        if read.get("seconds"):
            self.has_date = self.has_zone = True
            return int(read["seconds"]) * 1000 + fraction
        if match.re is _CLOCK_ONLY:
            of_day = ((int(read["h"]) * 60 + int(read["m"])) * 60 + int(read["s"])) * 1000 + fraction
            if self._previous_ms < 0:
                return of_day
            at_ms = self._previous_ms - self._previous_ms % _DAY_MS + of_day
            return at_ms + _DAY_MS if at_ms < self._previous_ms - _DAY_MS // 2 else at_ms
        stamp = match.string[match.start() : match.start("s") + 2] + (read.get("zone") or "")
        if stamp != self._last_text:
            self._last_text, self._last_ms = stamp, self._second(read)
        return self._last_ms + fraction

    def _second(self, read: dict[str, str | None]) -> int:
        if read.get("a"):
            first, second = int(read["a"] or 0), int(read["b"] or 0)
            day, month = (first, second) if first > 12 or (second <= 12 and "." in self._last_text) else (second, first)
        else:
            day = int(read["d"] or 0)
            month = _MONTHS[(read["month"] or "").lower()] if read.get("month") else int(read["mo"] or 0)
        year = int(read["y"]) if read.get("y") else self._year  # type: ignore[arg-type]  # of a group that matched
        self.has_date = self.has_date or bool(read.get("y"))
        second_of_minute = min(59, int(read["s"] or 0))
        moment = dt.datetime(year, month, day, int(read["h"] or 0), int(read["m"] or 0), second_of_minute, tzinfo=dt.UTC)
        zone = (read.get("zone") or "").strip()
        if zone:
            self.has_zone = True
        shift_s = 0
        if zone[:1] in ("+", "-"):
            digits = zone[1:].replace(":", "")
            shift_s = (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
        return round(moment.timestamp() - shift_s) * 1000


def time_of_date(line: str) -> int | None:
    """The time (ms since 1970) of a line that is nothing else, as ``date`` prints it; None: it has
    more, or none. Names of zones are passed over.
    """
    text = line.strip()
    if len(text) > 60 or not any(each.isdigit() for each in text):
        return None
    if _ISO.fullmatch(text) is not None:
        return Clock().read(text)
    match = _DATE.fullmatch(text)
    year = None if match is None else match["y"] or match["y2"]
    if match is None or year is None:
        return None
    hour = int(match["h"]) % 12 + (12 if match["half"] == "PM" else 0) if match["half"] else int(match["h"])
    month = _MONTHS[(match["month"] or match["month2"])[:3].lower()]
    try:
        moment = dt.datetime(int(year), month, int(match["d"] or match["d2"]), hour, int(match["m"]), min(59, int(match["s"])), tzinfo=dt.UTC)
    except ValueError:
        return None
    return round(moment.timestamp() * 1000)


def time_of_value(value: object) -> int | None:
    """A time of a JSON document: seconds, ms, us or ns since 1970, or text; None: it is none."""
    if isinstance(value, str):
        found = Clock().read(value)
        if found is not None:
            return found
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e9 <= value < 1e20:
        return None
    while value >= 1e13:
        value /= 1000
    return round(value if value >= 1e11 else value * 1000)
