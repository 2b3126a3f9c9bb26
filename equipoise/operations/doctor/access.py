"""The ACLs that workers, members and readers need. docs/deploy.md has the same table."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from equipoise.log.kafka.log_topics import Topics
from equipoise.member.tasks.positions import positions_topic

ROLES = ("worker", "member", "reader")


@attrs.frozen
class Acl:
    """`resource`: Topic, Group or TransactionalId. `operation`: as kafka-acls.sh names it."""

    resource: str
    name: str
    operation: str
    is_prefix: bool = False

    def command(self, bootstrap: str, user: str | None) -> str:
        """The command of Kafka that allows it."""
        option = {"Topic": "--topic", "Group": "--group", "TransactionalId": "--transactional-id"}[self.resource]
        pattern = " --resource-pattern-type prefixed" if self.is_prefix else ""
        add = f"--add --allow-principal User:{user or 'NAME'} --operation {self.operation} {option} {self.name}{pattern}"
        return f"kafka-acls.sh --bootstrap-server {bootstrap} {add}"

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}{'*' if self.is_prefix else ''}"


@attrs.frozen
class Need:
    """An ACL, and what fails without it. `is_optional`: only what `without` says fails."""

    acl: Acl
    without: str
    is_optional: bool = False


@attrs.frozen(kw_only=True)
class Application:
    """What the topology of a group names, and what only its application knows."""

    group: str
    sources: tuple[str, ...] = ()
    changelogs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    deals_by_lag: bool = False
    """The group's assignor reads committed offsets."""


def needs(role: str, topics: Topics, application: Application | None) -> Iterator[Need]:
    """The ACLs of a role, each once. `application`: None: of the log alone."""
    yield from {"worker": _worker, "member": _member, "reader": _reader}[role](topics, application)
    yield _topic(topics.bases, "Read", f"with a retention, no {role} can read a log whose first records are deleted", is_optional=True)


def _worker(topics: Topics, application: Application | None) -> Iterator[Need]:
    for topic in (topics.facts, topics.decisions, topics.checkpoints):
        yield _topic(topic, "Read", "no partition is taken over")
        yield _topic(topic, "Write", "nothing is decided")
    for topic in (topics.facts, topics.decisions, topics.checkpoints):
        yield _topic(topic, "DescribeConfigs", "the worker does not start: it checks its topics")
    yield Need(Acl("Group", f"{topics.prefix}.worker", "Read"), "no partition is assigned to the worker")
    create = Acl("Topic", f"{topics.prefix}.", "Create", is_prefix=True)
    yield Need(create, "workers cannot make the log's topics; an administrator can", is_optional=True)
    for operation in ("Write", "DescribeConfigs"):
        yield _topic(topics.bases, operation, "workers with a retention store no bases", is_optional=True)
    for topic in (topics.facts, topics.decisions):
        yield _topic(topic, "Delete", "workers with a retention delete no records", is_optional=True)
    if application is None:
        return
    for topic in dict.fromkeys((*application.sources, *application.changelogs)):
        yield _topic(topic, "Describe", f"group {application.group}: end offsets and racks are not observed")
    if application.deals_by_lag:
        yield Need(Acl("Group", application.group, "Describe"), f"group {application.group} is not dealt by lag")


def _member(topics: Topics, application: Application | None) -> Iterator[Need]:
    yield _topic(topics.facts, "Read", "members do not find the log")
    yield _topic(topics.facts, "Write", "members cannot join")
    yield _topic(topics.decisions, "Read", "members learn of no assignment")
    yield _topic(topics.checkpoints, "Read", "Member.owner, and the doctor's look at the group", is_optional=True)
    if application is None:
        return
    for topic in application.sources:
        yield _topic(topic, "Read", "its tasks do not run")
    for topic in application.changelogs:
        yield _topic(topic, "Read", "its tasks are not restored")
        yield _topic(topic, "Write", "its tasks do not run")
        yield _topic(topic, "DescribeConfigs", "members do not start: they check that it is compacted")
    for topic in application.outputs:
        yield _topic(topic, "Write", "its tasks cannot commit")
    for operation in ("Read", "Write", "DescribeConfigs"):
        yield _topic(positions_topic(application.group), operation, "members do not start: offsets of tasks are there")
    yield _topic(positions_topic(application.group), "Create", "members cannot make it; an administrator can", is_optional=True)
    yield Need(Acl("Group", application.group, "Read"), "offsets are not committed")
    own = Acl("TransactionalId", f"{application.group}/", "Write", is_prefix=True)
    yield Need(own, "with exactly_once no task runs; else none whose former owner had exactly_once")
    for topic in dict.fromkeys((*application.sources, *application.changelogs, *application.outputs)):
        yield _topic(topic, "Create", "create_topics=True cannot make it; an administrator can", is_optional=True)


def _reader(topics: Topics, application: Application | None) -> Iterator[Need]:
    for topic, without in (
        (topics.facts, "no command can read the log"),
        (topics.decisions, "no command can read the log"),
        (topics.checkpoints, "groups and status cannot begin"),
    ):
        yield _topic(topic, "Read", without)


def _topic(name: str, operation: str, without: str, *, is_optional: bool = False) -> Need:
    return Need(Acl("Topic", name, operation), without, is_optional)
