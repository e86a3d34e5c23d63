"""The keys by which secrets in the metadata are encrypted, in a simulated cluster."""

from conveyor.broker.metadata.cluster_secret import ENCRYPTED


class SimulatedKeys:
    """Keys for the secrets in the metadata, which hide nothing here. A `SecretKeys`."""

    def encrypt(self, path: str, secret: bytes) -> bytes:
        return ENCRYPTED + b"simulated " + secret.hex().encode()

    def decrypt(self, path: str, content: bytes) -> bytes:
        return bytes.fromhex(content.decode().rpartition(" ")[2])

    def is_current(self, content: bytes) -> bool:
        return content.startswith(ENCRYPTED)
