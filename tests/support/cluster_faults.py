"""Faults of a simulated Kafka cluster: brokers that fail, leaders that change, topics that lose
what they had.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka import errors

from equipoise.kafka.client import TopicPartition
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.cluster_state import BrokerPartition, FrozenView, SimulatedBroker
from equipoise.testing.simulated.kafka.partition_log import PartitionLog


def grow_topic(cluster: Cluster, name: str, partitions: int) -> None:
    topic = cluster.topics[name]
    replication = len(topic.partitions[0].replicas)
    topic.partitions += [cluster.new_partition(name, index, cluster.spread(index, replication)) for index in range(len(topic.partitions), partitions)]


def delete_topic(cluster: Cluster, name: str) -> None:
    """Committed offsets of its partitions go with it."""
    topic = cluster.topics.pop(name)
    cluster.coordinators.forget_topic(name)
    for each in topic.partitions:
        each.leader = -1
        cluster._fail_unacknowledged(each, errors.UnknownTopicOrPartitionError)
        cluster._bound_moved(each)


def compact(cluster: Cluster, place: TopicPartition, below: int, deletions_from_ms: int = 0) -> None:
    cluster.topics[place[0]].partitions[place[1]].log.compact(below, deletions_from_ms)


def lose_tail(cluster: Cluster, place: TopicPartition, count: int) -> None:
    """A disk or an unclean election loses the last records, acknowledged ones too. The next
    leader, or the same again, leads in another epoch.
    """
    each = cluster.topics[place[0]].partitions[place[1]]
    each.log.truncate(max(each.log.start, each.log.end - count))
    _begin_epoch(cluster, each)
    each.is_settling = False
    each.log.raise_high_watermark(each.log.end)
    cluster._fail_unacknowledged(each, errors.NotLeaderForPartitionError)
    cluster._bound_moved(each)


def kill_broker(cluster: Cluster, number: int) -> None:
    """kill -9. Its connections break; the others elect leaders after a while."""
    broker = cluster.brokers[number]
    broker.is_up = broker.is_paused = False
    broker.view = None
    broker.fetch_sessions.clear()
    broker.held.clear()
    for connection in list(broker.connections.values()):
        connection.broken()
    _lost(cluster, broker)


def start_broker(cluster: Cluster, number: int) -> None:
    """Starts a killed broker."""
    cluster.brokers[number].is_up = True
    cluster.scheduler.call_later(cluster.between_us(cluster.settle_us), _rejoin, cluster, cluster.brokers[number])


def pause_broker(cluster: Cluster, number: int) -> None:
    """SIGSTOP: it keeps its connections and answers nothing."""
    cluster.brokers[number].is_paused = True
    isolate_broker(cluster, number)


def resume_broker(cluster: Cluster, number: int) -> None:
    """SIGCONT: it answers as it knew things before the pause, until it hears of the others."""
    broker = cluster.brokers[number]
    broker.is_paused = False
    for connection in list(broker.connections.values()):
        connection.resumed()
    cluster.scheduler.call_later(cluster.between_us(cluster.settle_us), heal_broker, cluster, number)


def isolate_broker(cluster: Cluster, number: int) -> None:
    """Cuts a broker from the others, and not from clients: it still believes to lead, and
    answers reads with what it has.
    """
    broker = cluster.brokers[number]
    if broker.view is not None:
        return
    broker.view = FrozenView(
        topics=dict(cluster.topics),
        leaders={each.place: each.leader for each in cluster.every_partition()},
        ends={each.place: (each.log.high_watermark, each.log.last_stable_offset) for each in cluster.every_partition() if each.leader == broker.id},
        epochs={each.place: (each.epoch, each.log.epochs) for each in cluster.every_partition() if each.leader == broker.id},
        offsets={group: dict(offsets) for group, offsets in cluster.coordinators.offsets.items()},
    )
    _lost(cluster, broker)


def heal_broker(cluster: Cluster, number: int) -> None:
    """Ends `isolate`."""
    broker = cluster.brokers[number]
    if broker.is_up and not broker.is_paused and broker.view is not None:
        broker.view = None
        held, broker.held = broker.held, []
        for reply in held:
            reply(None)
        _rejoin(cluster, broker)


def elect_leader(cluster: Cluster, each: BrokerPartition) -> None:
    """A new leader for one partition at once, if there is another in-sync replica."""
    _elect(cluster, each, [number for number in each.isr if number != each.leader])


def _lost(cluster: Cluster, broker: SimulatedBroker) -> None:
    cluster.scheduler.call_later(cluster.between_us(cluster.election_us), _elect_without, cluster, broker)


def _elect_without(cluster: Cluster, broker: SimulatedBroker) -> None:
    if broker.is_well:
        return
    for each in cluster.every_partition():
        if broker.id in each.isr and len(each.isr) > 1:
            each.isr.remove(broker.id)
        if each.leader == broker.id:
            _elect(cluster, each, each.isr)
        else:
            cluster._replicated(each, each.epoch, each.log.end)


def _elect(cluster: Cluster, each: BrokerPartition, candidates: Sequence[int]) -> None:
    well = [number for number in candidates if cluster.brokers[number].is_well]
    if not well:
        if each.leader >= 0 and not cluster.brokers[each.leader].is_well:
            each.leader = -1
        return
    log, random = each.log, cluster.random
    log.truncate(log.committed + int(random.random() * (log.end - log.committed + 1)))
    each.leader = random.choice(well)
    _begin_epoch(cluster, each)
    each.is_settling = True
    log.high_watermark = max(log.start, log.committed - random.randrange(4))
    cluster._fail_unacknowledged(each, errors.NotLeaderForPartitionError)
    cluster._bound_moved(each)
    cluster.scheduler.call_later(cluster.between_us(cluster.settle_us), _settled, cluster, each, each.epoch)


def _begin_epoch(cluster: Cluster, each: BrokerPartition) -> None:
    each.epoch += 1
    each.log.begin_epoch(each.epoch)


def _settled(cluster: Cluster, each: BrokerPartition, epoch: int) -> None:
    if each.epoch == epoch:
        each.is_settling = False
        cluster._replicated(each, epoch, each.log.end)


def _rejoin(cluster: Cluster, broker: SimulatedBroker) -> None:
    if not broker.is_well:
        return
    for each in cluster.every_partition():
        if broker.id in each.replicas and (each.leader >= 0 or broker.id in each.isr):
            if broker.id not in each.isr:
                each.isr.append(broker.id)
            if each.leader < 0:
                _elect(cluster, each, [broker.id])
            else:
                cluster._replicated(each, each.epoch, each.log.end)


def committed_end(log: PartitionLog) -> int:
    """Behind the last record that consumers with read_committed see."""
    stable = log.last_stable_offset
    for record in reversed(log.records):
        if record.batch.marker is None and record.offset < stable and record.offset not in log._aborted:
            return record.offset + 1
    return log.start
