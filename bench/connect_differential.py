"""`python -m bench.connect_differential`: random scripts, the assignor `kafka_connect` against the
class of the published jar.

Everything that Connect's answer depends on is drawn: ids whose hashes share a bucket or that Java
orders otherwise than we, few and many workers, connectors and tasks, work that two claim, rounds
that reach nobody, leaders that have lost a generation, and every kind of delay. Prints how many
scripts came out equal in all their rounds, and the first that did not.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterable
from typing import Any

import click

from bench import kafka_java
from tests.vectors import connect_answer, in_any_order

SOURCES = kafka_java.SOURCES / "connect"
BUILT = kafka_java.BUILT.with_name("java-connect")
DRIVER = "ConnectDriver"
DRIVER_CLASS = f"org.apache.kafka.connect.runtime.distributed.{DRIVER}"
DELAYS_MS = (0, 1, 2, 39, 40, 41, 1_000, 1_600, 1_601, 64_000, 300_000, 300_001, 2**31 - 1)
TASKS = (0, 1, 2, 3, 7, 20)


def script(dice: random.Random) -> dict[str, Any]:
    """A script in the form of the vectors (`tests.vectors`), with one worker or more in every
    round.
    """
    connectors, workers = _names(dice, dice.choice(("conn{}", "c-{}", "")), 20), _names(dice, dice.choice(("w{}", "10.0.0.{}:8083", "")), 40)
    steps: list[dict[str, Any]] = []
    live = [workers.pop() for _ in range(min(dice.choice((1, 2, 3, 8, 15, 25)), len(workers)))]
    steps.extend({"op": "join", "w": worker} for worker in live)
    configured = [connectors.pop() for _ in range(min(dice.choice((1, 2, 4, 14)), len(connectors)))]
    steps.extend({"op": "conf", "c": connector, "n": dice.choice(TASKS)} for connector in configured)
    for _ in range(dice.randint(3, 40)):
        match dice.choices(("round", "join", "leave", "conf", "del", "sleep", "sleepdelay", "claim"), (45, 10, 10, 10, 4, 7, 7, 7))[0]:
            case "round":
                steps.append({"op": dice.choice(("rebalance",) * 8 + ("fail", "mismatch"))})
            case "join" if workers:
                live.append(workers.pop())
                steps.append({"op": "join", "w": live[-1]})
            case "leave" if len(live) > 1:
                workers.insert(0, live.pop(dice.randrange(len(live))))
                steps.append({"op": "leave", "w": workers[0]})
            case "conf":
                if connectors and dice.random() < 0.5:
                    configured.append(connectors.pop())
                if configured:
                    steps.append({"op": "conf", "c": dice.choice(configured), "n": dice.choice(TASKS)})
            case "del" if configured:
                connectors.insert(0, configured.pop(dice.randrange(len(configured))))
                steps.append({"op": "del", "c": connectors[0]})
            case "sleep":
                steps.append({"op": "sleep", "ms": dice.choice((1, 40, 1_000, 100_000, 300_000))})
            case "sleepdelay":
                steps.append({"op": "sleepdelay"})
            case "claim" if len(live) > 1:
                worker, other = dice.sample(live, 2)
                steps.append({"op": "claim", "w": worker, "from": other})
    return {"maxDelay": dice.choice((*DELAYS_MS, dice.randint(2, 10**6))), "steps": [*steps, {"op": "rebalance"}]}


def _names(dice: random.Random, form: str, count: int) -> list[str]:
    """`count` ids of the form, or of any letters, in any order."""
    names = [form.format(number) if form else "".join(dice.choices("abXY01-\u00e9\ue000\U0001f600", k=dice.randint(1, 6))) for number in range(count)]
    names = list(dict.fromkeys(names))
    dice.shuffle(names)
    return names


def theirs(scripts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the class of the jar decides, script by script. Raises InputError when there is no Java
    to ask.
    """
    lines = "".join(json.dumps(each) + "\n" for each in scripts)
    command = ["java", "-cp", kafka_java.classpath(SOURCES, DRIVER, BUILT), DRIVER_CLASS]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, encoding="utf-8")
    return [{"rounds": in_any_order(json.loads(line)["rounds"])} for line in done.stdout.splitlines()]


@click.command()
@click.option("--scripts", default=500, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(scripts: int, seed: int) -> None:
    """Random scripts on the published jar and on ours."""
    dice = random.Random(seed)
    asked = [script(dice) for _ in range(scripts)]
    unequal = rounds = 0
    for question, answer in zip(asked, theirs(asked), strict=True):
        rounds += len(answer["rounds"])
        if connect_answer(question) != answer:
            unequal += 1
            if unequal == 1:
                click.echo(f"{json.dumps(question)}\ntheirs {json.dumps(answer)}\nours   {json.dumps(connect_answer(question))}")
    click.echo(f"{scripts - unequal} of {scripts} scripts equal, {rounds} rounds")
    raise SystemExit(1 if unequal else 0)


if __name__ == "__main__":
    main()
