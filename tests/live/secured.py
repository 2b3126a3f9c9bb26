"""A real broker with TLS, SCRAM-SHA-512 and StandardAuthorizer, and its users and ACLs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import admin

from equipoise.operations.doctor.access import Acl
from tools.brokers import Brokers, free_ports


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1: certificate and key, PEM."""
    if shutil.which("openssl") is None:
        pytest.fail("openssl makes the test's certificate: apt-get install -y openssl")
    chain, key = folder / "broker.pem", folder / "broker.key"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(chain),
        ],
        check=True,
        capture_output=True,
    )
    return chain, key


def with_tls(chain: Path, key: Path) -> dict[str, str]:
    """Settings of a broker whose listener for clients has TLS with this certificate."""
    certificates = chain.read_text().replace("\n", "\\n")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificates,
        "ssl.keystore.key": key.read_text().replace("\n", "\\n"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": certificates,
    }


kafka: Any = admin  # it ships no types


class SecuredBroker:
    """Everybody may do what ACLs allow. `inside`: an address without TLS and passwords, where
    everybody may do everything.
    """

    def __init__(self, brokers: Brokers, inside: str, chain: Path) -> None:
        self.bootstrap, self.inside, self._chain = brokers.bootstrap, inside, chain
        self._admin: Any = kafka.AdminClient({"bootstrap.servers": inside, "log_level": 0})  # it would log between the dots of pytest

    def add_user(self, user: str) -> None:
        """The password is the name, and `-secret`."""
        info = kafka.ScramCredentialInfo(kafka.ScramMechanism.SCRAM_SHA_512, 4_096)
        for future in self._admin.alter_user_scram_credentials([kafka.UserScramCredentialUpsertion(user, info, f"{user}-secret".encode())]).values():
            future.result()

    def settings(self, user: str) -> dict[str, str]:
        """Of a connection of the user, by name."""
        return {
            "bootstrap": self.bootstrap,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": user,
            "sasl_password": f"{user}-secret",
            "ssl_ca_file": str(self._chain),
        }

    def allow(self, user: str, acls: Iterable[Acl]) -> None:
        for future in self._admin.create_acls([_binding(user, acl) for acl in acls]).values():
            future.result()

    @contextmanager
    def without(self, user: str, acl: Acl) -> Iterator[None]:
        """Takes one ACL away for a while."""
        self._forbid(user, acl)
        try:
            yield
        finally:
            self.allow(user, [acl])

    def _forbid(self, user: str, acl: Acl) -> None:
        binding = _binding(user, acl)
        gone = kafka.AclBindingFilter(
            binding.restype, binding.name, binding.resource_pattern_type, binding.principal, "*", binding.operation, kafka.AclPermissionType.ALLOW
        )
        for future in self._admin.delete_acls([gone]).values():
            assert len(future.result()) == 1


_TYPES = {"Topic": kafka.ResourceType.TOPIC, "Group": kafka.ResourceType.GROUP, "TransactionalId": kafka.ResourceType.TRANSACTIONAL_ID}
_OPERATIONS = {
    "Read": kafka.AclOperation.READ,
    "Write": kafka.AclOperation.WRITE,
    "Describe": kafka.AclOperation.DESCRIBE,
    "Create": kafka.AclOperation.CREATE,
    "DescribeConfigs": kafka.AclOperation.DESCRIBE_CONFIGS,
    "Delete": kafka.AclOperation.DELETE,
    "AlterConfigs": kafka.AclOperation.ALTER_CONFIGS,
}


def _binding(user: str, acl: Acl) -> Any:
    pattern = kafka.ResourcePatternType.PREFIXED if acl.is_prefix else kafka.ResourcePatternType.LITERAL
    return kafka.AclBinding(_TYPES[acl.resource], acl.name, pattern, f"User:{user}", "*", _OPERATIONS[acl.operation], kafka.AclPermissionType.ALLOW)


@contextmanager
def secured_broker(folder: Path, *users: str, version: str = "", classpath: str = "", **more: str) -> Iterator[SecuredBroker]:
    """A broker with these users, none of whom may do anything yet. `more`: settings."""
    chain, key = certificate(folder)
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT,MORE0:PLAINTEXT",
        "inter.broker.listener.name": "MORE0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.plaintext.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **with_tls(chain, key),
        **more,
    }
    (port,) = free_ports(1)
    with Brokers(1, [[(port, port)]], version=version, classpath=classpath, **settings) as brokers:
        secured = SecuredBroker(brokers, f"127.0.0.1:{port}", chain)
        for user in users:
            secured.add_user(user)
        yield secured
