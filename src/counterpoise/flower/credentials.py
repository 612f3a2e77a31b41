"""Certificates and keys of a deployment: its own authority, the SuperLink's certificate, a key for every node."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from counterpoise.errors import CounterpoiseError

__all__ = ["certify", "make_key"]

_VALID = datetime.timedelta(days=365)
_HERE = ("127.0.0.1", "localhost")
"""A SuperLink's own processes reach it under the first of these, so every certificate is good for both."""
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$)(\*\.)?{_LABEL}(\.{_LABEL})*")
"""A server's name as certificates have it."""


def certify(folder: Path, hosts: Iterable[str] = (), *, renew: bool = False) -> None:
    """Write ``ca.crt``, ``server.pem`` and ``server.key``, for a server with these names, signed by a new authority.

    The certificate is also good for 127.0.0.1 and localhost. The authority's own key is discarded at once, so that
    nobody can sign another certificate in its name. Files that are there are replaced only with `renew`.
    """
    if not renew and (folder / "server.key").exists():
        raise CounterpoiseError(
            f"{folder} already holds certificates. New ones come from a new authority, so that every node needs the new "
            "ca.crt. If that is what you want, renew them: --renew (in Python: renew=True). Otherwise choose another "
            "folder."
        )
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    root = _name("Counterpoise deployment")
    ca = _certificate(root, root, authority.public_key()).add_extension(x509.BasicConstraints(True, 0), critical=True)
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = ca.add_extension(usage, critical=True)
    own = _certificate(_name("SuperLink"), root, server.public_key())
    own = own.add_extension(
        x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys((*hosts, *_HERE))]), critical=False
    )
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    own = own.add_extension(by, critical=False)
    pem = serialization.Encoding.PEM
    write_private(folder / "ca.crt", ca.sign(authority, hashes.SHA256()).public_bytes(pem))
    write_private(folder / "server.pem", own.sign(authority, hashes.SHA256()).public_bytes(pem))
    write_private(folder / "server.key", _private(server, serialization.PrivateFormat.PKCS8))


def make_key(path: Path) -> None:
    """Write a node's key and, beside it, the public key (``.pub``) that its operator registers.

    A key that is there is not replaced.
    """
    if path.exists():
        raise CounterpoiseError(
            f"{path} already exists. If a node uses this key, a new one would not be known to the SuperLink. Choose "
            "another name, or remove the file first."
        )
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_private(path, _private(key, serialization.PrivateFormat.OpenSSH))
    write_private(path.with_name(path.name + ".pub"), public + b"\n")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from the moment it exists."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    built = built.serial_number(x509.random_serial_number())
    return built.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + _VALID)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not _HOST.fullmatch(name):
            raise CounterpoiseError(
                f"{name[:80]!r} is neither a server's name nor an address. Give it as nodes do, without https:// and "
                "without a port, such as link.example.org or 192.0.2.7; letters with accents as xn--..."
            ) from None
        return x509.DNSName(name)


def _private(key: ec.EllipticCurvePrivateKey, kind: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
