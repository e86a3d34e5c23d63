"""The values of settings are text: nothing in them is looked up in a file or in the environment.

Source: CVE-2024-31141.
"""

from pathlib import Path

import pytest

from conveyor.settings.setting_names import broker_settings
from conveyor.settings.tree import topic_setting_fields
from conveyor.settings.unused_settings import UNUSED_TOPIC_SETTINGS
from tests.unit.kafka_api.client import MemoryClient

DESCRIBE, ALTER_SOME = 32, 44
TOPIC, BROKER = 2, 4
INVALID_REQUEST, INVALID_CONFIG = 42, 40


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file from which a provider would take a value that is valid, and a variable of the environment, too."""
    path = tmp_path / "values.properties"
    path.write_text("x=1\n")
    monkeypatch.setenv("SECRET_VALUE", "1")
    return str(path)


NAMES = [
    *((TOPIC, "t", name) for name in (*topic_setting_fields(), *UNUSED_TOPIC_SETTINGS)),
    *((BROKER, "1", name) for name, setting in broker_settings().items() if setting.is_live),
]


async def test_value_with_a_provider_stays_text(client: MemoryClient, secret: str) -> None:
    """Each setting refuses it, or shows it as it is: those without effect that take any text."""
    shown = []
    for kind, resource, name in NAMES:
        for text in (f"${{file:{secret}:x}}", "${env:SECRET_VALUE}", "${directory:/etc:passwd}"):
            config = {"name": name, "value": text, "config_operation": 0}
            asked = {"resource_type": kind, "resource_name": resource, "configs": [config]}
            [result] = (await client.ask(ALTER_SOME, 1, resources=[asked], validate_only=False)).responses
            if int(result.error_code) not in (INVALID_REQUEST, INVALID_CONFIG):
                assert int(result.error_code) == 0, (name, result.error_message)
                shown.append((name, await described(client, kind, resource, name), text))
    assert {name for name, _, _ in shown} >= {"metric.reporters"}
    assert [name for name, value, text in shown if value != text] == []


async def described(client: MemoryClient, kind: int, resource: str, name: str) -> str | None:
    asked = {"resource_type": kind, "resource_name": resource, "configuration_keys": [name]}
    flags = {"include_synonyms": False, "include_documentation": False}
    [result] = (await client.ask(DESCRIBE, 4, resources=[asked], **flags)).results
    [entry] = result.configs
    value: str | None = entry.value
    return value
