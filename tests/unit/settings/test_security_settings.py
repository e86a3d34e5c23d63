"""Who may change settings at run time cannot weaken the security of brokers, nor have them read files or URLs."""

import pytest

from conveyor.settings.setting_names import broker_settings, group_settings
from conveyor.settings.tree import from_sources

SECTIONS_OF_SECURITY = {"access", "network", "sasl", "tls", "zookeeper"}
PROVIDERS = ("${file:/etc/passwd:x}", "${env:HOME}", "${dir:/etc:passwd}", "$HOME", "file:///etc/passwd")
"""What Kafka's clients replace (CVE-2024-31141), and the like."""


def test_no_setting_of_security_changes_at_run_time() -> None:
    every = (*broker_settings().values(), *group_settings().values())
    found = [
        setting.path
        for setting in every
        if setting.is_used and (setting.section in SECTIONS_OF_SECURITY or setting.declared.metadata["is_secret"])
        if setting.is_live
    ]
    assert found == []


def test_no_setting_that_changes_at_run_time_names_a_file_or_an_address() -> None:
    """Source: CVE-2023-25194, CVE-2025-27817, CVE-2025-27818, CVE-2025-27819."""
    kinds = ("url", "file", "dir", "class", "address", "host", "provider", "command", "jaas")
    found = [
        name
        for name, setting in broker_settings().items()
        if setting.is_used and setting.is_live and isinstance(setting.declared.default, str)
        if set(kinds) & set(setting.path.replace(".", "_").split("_"))
    ]
    assert found == []


@pytest.mark.parametrize("text", PROVIDERS)
def test_setting_is_the_text_that_is_given(text: str) -> None:
    assert from_sources({"broker.rack": text}).broker.rack == text
    assert from_sources({}, {"broker.rack": text}).broker.rack == text
