"""Which broker a question goes to, and after which errors to another one: without I/O and clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, NotControllerError, RequestTimedOutError

NAMED_S = 5.0
"""How long a question waits for brokers that name no controller: one that has just started does not
know it yet.
"""
REACHED_S = 20.0
"""How long it waits for a controller that is away: for some seconds after a broker died the others
still name it, 9 by default.
"""
_AWAY = (KafkaConnectionError, NodeNotReadyError)
SILENT_S = 5.0
"""A broker that has not answered for so long is silent, and another one is asked."""


class AnyBroker:
    """A question that every broker answers. It goes to one after the other until one is there. The
    last one may take as long as a request may.
    """

    def __init__(self) -> None:
        self.within_s: float | None = None
        """How long the broker is waited for that was yielded last."""
        self._away: set[int] = set()
        self.error: KafkaError = KafkaConnectionError("no broker is known")
        """Of the last one that was away."""

    def each(self, brokers: Callable[[], Iterable[int]]) -> Iterator[int]:
        """Yields whom to ask now. `brokers`: those that are known by then."""
        while left := [each for each in brokers() if each not in self._away]:
            self.within_s = SILENT_S if len(left) > 1 else None
            yield left[0]

    def failed(self, broker: int, error: KafkaError) -> None:
        """The question has failed at this broker. Raises it if another one would say the same."""
        if not isinstance(error, (*_AWAY, RequestTimedOutError)):
            raise error
        self._away.add(broker)
        self.error = error


class ControllerAlone:
    """A question that the controller answers, whichever broker that is by now. `now_s`: of any
    clock.
    """

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s

    def choose(self, controller: int | None, now_s: float) -> int | None:
        """Returns whom to ask now; None: the brokers are to be asked who it is. Raises
        NodeNotReadyError when they name none for NAMED_S.
        """
        if controller is None and now_s - self._began_s > NAMED_S:
            raise NodeNotReadyError("the brokers name no controller yet")
        return controller

    def failed(self, error: KafkaError, now_s: float) -> None:
        """Raises it, unless it may be another broker by now: then they are to be asked again."""
        if not error.retriable or not isinstance(error, (*_AWAY, NotControllerError)) or now_s - self._began_s > REACHED_S:
            raise error
