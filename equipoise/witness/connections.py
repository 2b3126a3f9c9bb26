"""Connections of this machine to a broker: by which address, and of which processes. Linux, and the
network namespace of this process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from equipoise.kafka.consumer_groups import normalised

Endpoint = tuple[str, int]
"""Address in the form of `normalised`, and port."""
_ESTABLISHED = "01"


def own_addresses(broker: Iterable[Endpoint]) -> frozenset[str]:
    """The addresses of this machine as the broker sees them, unless a NAT is between."""
    found = set()
    for address, port in broker:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):  # no route: no client of this machine uses it
            probe.connect((address, port))  # sends nothing: it only chooses the route
            found.add(normalised(probe.getsockname()[0]))
    return frozenset(found)


def are_only_clients(broker: Iterable[Endpoint]) -> bool:
    """Returns whether processes that this one has started are connected to the broker, and no other
    process of this machine is, but this one. False too if their connections cannot be seen, because
    they run as another user.
    """
    connected = _connected_to(frozenset(broker))  # before the others: a client opens connections, and seldom closes one
    connected -= _sockets_of(os.getpid())
    started = {inode for pid in _started_by(os.getpid()) for inode in _sockets_of(pid)}
    return bool(connected) and connected <= started


def _connected_to(broker: frozenset[Endpoint]) -> set[int]:
    """Inodes of the sockets with an established connection to the broker."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a machine without IPv6
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                _, _, remote, state, *others = line.split()
                if state == _ESTABLISHED and _endpoint(remote) in broker:
                    found.add(int(others[5]))
    return found


def _endpoint(text: str) -> Endpoint:
    """``0100007F:1F90``, in words of the machine's byte order, as 127.0.0.1 and 8080."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return normalised(socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))), int(port, 16)


def _sockets_of(pid: int) -> set[int]:
    """Inodes of the process's sockets; empty if it is not to be seen."""
    found = set()
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(each)
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def _started_by(pid: int) -> set[int]:
    """The children of the process, their children, and so on."""
    parents = dict(_parents())
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _parents() -> Iterator[tuple[int, int]]:
    """Process and its parent."""
    for each in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            yield int(each.parent.name), int(each.read_text().rpartition(")")[2].split()[1])
