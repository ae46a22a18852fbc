"""A server that speaks TLS only and wants a client certificate, with the files for both ends."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.eventually import HANG_S, eventually
from tests.services import free_port, redis_binary, unavailable


@contextmanager
def tls_server(directory: Path, *options: str) -> Iterator[int]:
    """The port of such a server; the directory gets `.crt` and `.key` of `ca`, `server` and `client`."""
    binary = redis_binary("redis7")
    if binary is None:
        unavailable("redis", "no redis-server with TLS on PATH")
    authority = certificate("authority")
    write_pem(directory, "ca", *authority)
    for name in ("server", "client"):
        write_pem(directory, name, *certificate(name, issuer=authority))
    port = free_port()
    files = {"tls-cert-file": "server.crt", "tls-key-file": "server.key", "tls-ca-cert-file": "ca.crt"}
    tls = [part for name, file in files.items() for part in (f"--{name}", str(directory / file))]
    process = subprocess.Popen(
        [
            str(binary),
            "--port",
            "0",
            "--tls-port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            *tls,
            *options,
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: is_listening(port))
        yield port
    finally:
        process.terminate()
        process.wait(timeout=HANG_S)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def key_usage(*, is_authority: bool) -> x509.KeyUsage:
    """What Python 3.13 wants to see in a certificate."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def certificate(name: str, *, issuer=None):
    """A key and a certificate for 127.0.0.1, signed by the issuer or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer_key, issuer_cert = issuer or (key, None)
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer_cert is None else issuer_cert.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(key_usage(is_authority=issuer is None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
        .sign(issuer_key, hashes.SHA256())
    )
    return key, built


def write_pem(directory, name, key, cert):
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    (directory / f"{name}.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    (directory / f"{name}.crt").write_bytes(cert.public_bytes(pem))
