"""Invalid requests about users.

Source: Kafka's KafkaApis and ScramControlManager.
"""

from typing import Any

from kio.schema.errors import ErrorCode as E

from tests.unit.kafka_api.illegal_row import Row, Values


def upsert(name: str = "eve", **more: Any) -> Values:
    whole = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}
    return {"deletions": (), "upsertions": [whole | {"name": name} | more]}


def delete(name: str, mechanism: int = 1) -> Values:
    return {"deletions": [{"name": name, "mechanism": mechanism}], "upsertions": ()}


def describe(*names: str) -> Values:
    return {"users": [{"name": name} for name in names]}


ROWS = [
    Row(17, (1,), "SASL on a listener without it", {"mechanism": "PLAIN"}, E.illegal_sasl_state),
    Row(36, (0, 1, 2), "SASL on a listener without it", {"auth_bytes": b"\0alice\0secret"}, E.illegal_sasl_state),
    Row(50, (0,), "an unknown user", describe("eve"), E.resource_not_found),
    Row(50, (0,), "a user twice", describe("eve", "eve"), E.duplicate_resource),
    Row(51, (0,), "no name", upsert(""), E.unacceptable_credential),
    Row(51, (0,), "too few iterations", upsert(iterations=4095), E.unacceptable_credential),
    Row(51, (0,), "too many iterations", upsert(iterations=16_385), E.unacceptable_credential),
    Row(51, (0,), "no salt", upsert(salt=b""), E.unacceptable_credential),
    Row(51, (0,), "a hash of another mechanism", upsert(mechanism=2), E.unacceptable_credential),
    Row(51, (0,), "an unknown mechanism", upsert(mechanism=0), E.unsupported_sasl_mechanism),
    Row(51, (0,), "a credential that is not there", delete("eve"), E.resource_not_found),
    Row(51, (0,), "a credential twice", delete("eve") | {"upsertions": upsert()["upsertions"]}, E.duplicate_resource),
]
