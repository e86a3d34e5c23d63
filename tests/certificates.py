"""Certificates in files, for tests of TLS."""

from pathlib import Path

from conveyor.adapters.tls.development_authority import DevelopmentAuthority, Issued
from conveyor.settings.tls_settings import TlsSettings


def write(directory: Path, name: str, issued: Issued) -> tuple[str, str]:
    """Write a certificate and its key, and return their paths."""
    paths = directory / f"{name}.pem", directory / f"{name}.key"
    for path, content in zip(paths, issued, strict=True):
        path.write_bytes(content)
    return str(paths[0]), str(paths[1])


def tls_settings(directory: Path, authority: DevelopmentAuthority, days: int = 30, **more: str) -> TlsSettings:
    """Return settings with a new certificate for 127.0.0.1 in this directory."""
    cert_file, key_file = write(directory, "broker", authority.issue_for_broker(["127.0.0.1"], days))
    return TlsSettings(cert_file=cert_file, key_file=key_file, **more)
