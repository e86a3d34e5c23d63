"""The settings tree: valid values, relations between values, and precedence of sources."""

from dataclasses import FrozenInstanceError, fields

import pytest

from conveyor.kernel.errors import SettingsError
from conveyor.settings.setting import type_names
from conveyor.settings.tree import (
    Settings,
    TopicSettings,
    from_sources,
    topic_setting_name,
    topic_settings,
)

SECTIONS = [section.name for section in fields(Settings)]


@pytest.mark.parametrize("section", SECTIONS)
def test_settings_say_what_they_mean(section: str) -> None:
    for declared in fields(getattr(Settings(), section)):
        assert declared.metadata["doc"].endswith("."), declared.name
        assert type(declared.default) in type_names, declared.name
        assert not declared.name.endswith("_ms") or declared.metadata["unit"] == "ms", declared.name
        assert not declared.name.endswith("_bytes") or declared.metadata["unit"] == "bytes", declared.name


def test_settings_defaults_pass_their_own_checks() -> None:
    every = {
        f"{name}.{declared.name}": declared.default
        for name in SECTIONS
        for declared in fields(getattr(Settings(), name))
    }
    assert from_sources(every) == from_sources() == Settings()


def test_settings_tree_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().broker.node_id = 2  # type: ignore[misc]


def test_from_sources_first_source_wins() -> None:
    flags = {"broker.node_id": 5}
    environment = {"broker.node_id": "6", "broker.rack": "b"}
    file: dict[str, object] = {"broker.rack": "c", "network.insecure": True}
    settings = from_sources(flags, environment, file)
    assert (settings.broker.node_id, settings.broker.rack, settings.network.insecure) == (5, "b", True)


@pytest.mark.parametrize(
    ("text", "parsed"), [("true", True), (" Yes ", True), ("1", True), ("FALSE", False), ("no", False), ("0", False)]
)
def test_from_sources_reads_true_and_false(text: str, parsed: bool) -> None:
    assert from_sources({"network.insecure": text}).network.insecure is parsed


def test_from_sources_reads_numbers_as_people_write_them() -> None:
    assert from_sources({"broker.max_partitions": " 10_000 "}).broker.max_partitions == 10_000


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("broker.node_id", "one", "'broker.node_id' is 'one': it takes a whole number"),
        ("broker.node_id", 1.5, "it takes a whole number"),
        ("broker.node_id", True, "it takes a whole number"),
        ("broker.rack", 7, "it takes text"),
        ("network.insecure", "perhaps", "it takes true or false"),
        ("broker.node_id", -1, "it must be at least 0"),
        ("network.max_request_bytes", 1 << 31, "it must be at most 2147483647 bytes"),
        ("topics.segment_bytes", "1023", "it must be at least 1024 bytes"),
        ("broker.num_partitions", 100_001, "it must be at most 100000 partitions"),
        ("topics.flush_policy", "never", "'never': it is one of ack, os"),
        ("broker.no_such", 1, "unknown setting 'broker.no_such': use one of"),
        ("brokers.node_id", 1, "unknown setting 'brokers.node_id': there is no section 'brokers'"),
        ("node_id", 1, "unknown setting 'node_id'"),
    ],
)
def test_from_sources_refuses(name: str, value: object, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        from_sources({name: value})
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (
            {"groups.min_session_timeout_ms": 20, "groups.max_session_timeout_ms": 10},
            ("groups.min_session_timeout_ms", "groups.max_session_timeout_ms"),
        ),
        (
            {"topics.max_message_bytes": 2000, "network.max_request_bytes": 1999},
            ("topics.max_message_bytes", "network.max_request_bytes"),
        ),
        (
            {"network.max_request_bytes": 1 << 30, "network.max_buffered_bytes": 1 << 29},
            ("network.max_request_bytes", "network.max_buffered_bytes"),
        ),
        ({"broker.gateway": True}, ("broker.gateway", "broker.metadata")),
        (
            {"broker.gateway": True, "broker.metadata": "zookeeper://zk", "broker.node_id": 7},
            ("broker.gateway", "broker.node_id"),
        ),
        ({"zookeeper.tls_cert_file": "c.pem"}, ("zookeeper.tls_cert_file", "zookeeper.tls_key_file")),
        ({"zookeeper.set_acl": True}, ("zookeeper.set_acl", "zookeeper.tls_cert_file", "broker.metadata")),
        ({"tls.peer_ca_file": "ca.pem"}, ("tls.peer_cert_file", "tls.peer_key_file", "tls.peer_ca_file")),
        ({"zookeeper.tls_ca_file": "ca.pem"}, ("zookeeper.tls_ca_file", "zookeeper.tls=true")),
    ],
)
def test_from_sources_checks_relations_and_names_both(values: dict[str, object], names: tuple[str, str]) -> None:
    with pytest.raises(SettingsError) as refused:
        from_sources(values)
    assert all(name in str(refused.value) for name in names)


@pytest.mark.parametrize("name", ["admin", "user:admin", "User:", "Group:ops", "User :admin"])
def test_a_super_user_who_could_not_log_in_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"access.super_users names '{name}'"):
        from_sources({"access.super_users": f"User:ops; {name}"})


def test_super_users_are_separated_by_semicolons() -> None:
    access = from_sources({"access.super_users": "; User:CN=ops,O=Example ;User:*;;"}).access
    assert access.super_user_names == {"User:CN=ops,O=Example", "User:*"}


def test_topic_settings_take_kafkas_names_over_the_defaults() -> None:
    defaults = TopicSettings(segment_bytes=2048, min_insync_replicas=2)
    made = topic_settings(defaults, {"segment.bytes": "4096", "flush.policy": "os"})
    assert (made.segment_bytes, made.flush_policy, made.min_insync_replicas) == (4096, "os", 2)


def test_topic_settings_names_are_distinct() -> None:
    names = [topic_setting_name(declared) for declared in fields(TopicSettings)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("segment_bytes", "4096", "unknown topic setting 'segment_bytes': use one of"),
        ("cleanup.policy", "compact,tidy", "it is one of delete, compact"),
        ("no.such", "1", "unknown topic setting 'no.such'"),
        ("min.cleanable.dirty.ratio", "nan", "it takes a number"),
        ("segment.bytes", "many", "'segment.bytes' is 'many': it takes a whole number"),
        ("segment.ms", "0", "'segment.ms' is 0: it must be at least 1 ms"),
        ("message.timestamp.type", "createtime", "it is one of CreateTime, LogAppendTime"),
    ],
)
def test_topic_settings_refuse(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        topic_settings(TopicSettings(), {name: value})
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "origins",
    ["", "*", "https://app.example", "http://localhost:3000,https://a.example:8443", "http://[::1]:80443", "app://x"],
)
def test_origins_are_listed_as_browsers_write_them(origins: str) -> None:
    network = from_sources({"network.http_cors_origins": origins}).network
    assert network.cors_origins == ({*origins.split(",")} if origins else set())


@pytest.mark.parametrize(
    "origins",
    [
        "null",
        "https://a.example,null",
        "*,https://a.example",
        "https://*.example",
        "https://a.example/",
        "https://A.example",
        "https://a.example:443",
        "http://a.example:80,https://b.example",
        "a.example",
        "https://user@a.example",
        "https://a.example https://b.example",
        "https://a.example,",
    ],
)
def test_origin_that_no_browser_sends_is_refused(origins: str) -> None:
    with pytest.raises(SettingsError, match=r"http_cors_origins"):
        from_sources({"network.http_cors_origins": origins})


@pytest.mark.parametrize(
    "login",
    [
        {"network.http_users": True},
        {"network.token_file": "tokens"},
        {"tls.client_auth": "requested", "tls.client_ca_file": "ca.pem"},
    ],
)
def test_origins_are_listed_one_by_one_where_clients_log_in(login: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="list the origins"):
        from_sources({**login, "network.http_cors_origins": "*"})
    from_sources({**login, "network.http_cors_origins": "https://a.example"})
