"""Publishes the decisions of a partition: a part of a takeover session."""

from __future__ import annotations

import asyncio
from typing import Any

from equipoise.events.errors import DamagedError
from equipoise.events.records import DecisionRecord
from equipoise.log.kafka.envelope import group_key, pack_decision
from equipoise.statemachine.partition import PartitionLead
from equipoise.worker.base_storing import RECORD_BYTES, Written
from equipoise.worker.checkpoint_storing import CheckpointKeeper
from equipoise.worker.decision_marks import DecisionMarks
from equipoise.worker.log_identity import LogIdentity
from equipoise.worker.session_sender import SessionSender


class DecisionPublisher:
    """Publishes what `lead` decides to `topic`, and tells it what the brokers have acknowledged."""

    def __init__(
        self,
        topic: str,
        lead: PartitionLead,
        sender: SessionSender,
        marks: DecisionMarks,
        written: Written,
        checkpoints: CheckpointKeeper,
        identity: LogIdentity,
    ) -> None:
        self._identity = identity
        self._topic, self._lead, self._sender = topic, lead, sender
        self._marks, self._written, self._checkpoints = marks, written, checkpoints

    async def publish(self, decision: DecisionRecord) -> asyncio.Future[Any]:
        """Sends a decision. Returns a future that ends when the brokers have it. Raises
        SendFailedError.
        """
        key, value = group_key(decision.group), pack_decision(decision)
        self._written.bytes_ += len(key) + len(value) + RECORD_BYTES
        future = await self._sender.send(self._topic, key, value)
        future.add_done_callback(lambda done: self._published(decision, done))
        return future

    def _published(self, decision: DecisionRecord, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            return  # the sender reports the failure
        offset = done.result().offset
        if offset < self._written.decisions_offset:
            self._sender.fail(DamagedError(decision.caused_by, f"its decision is at {offset}, before others: the brokers have lost decisions"))
            return
        self._marks.published(decision.caused_by, offset)
        self._written.decisions_offset = self._identity.decisions_end = offset + 1
        group = self._lead.groups[decision.group]
        if group.waiting and group.waiting[0].number <= decision.number:
            task = asyncio.ensure_future(self._checkpoints.store(decision.group, decision.number))
            task.add_done_callback(self._stored)
        else:
            self._lead.acknowledged(decision.group, decision.number)  # no checkpoint waits for it

    def _stored(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._sender.fail(error)
