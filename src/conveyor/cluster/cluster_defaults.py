"""The defaults of topics that belong to the cluster: those by which the replicas of a partition must agree.

A leader commits by them, the controller elects by them, and each replica deletes and delivers records by them. If two
brokers had different values, a clean election could lose, repeat or reveal records that another broker has promised to
keep. `setting(of_cluster=True)` marks them. For a topic without a value of its own, the image alone decides:

    new cluster     the first broker stores the values that it was started with (`founded`), before any topic exists
    other brokers   values that they were started with do not count, and are reported if they differ
    changed         for all brokers only; one entry with the end of the ELRs that the change makes unsafe
    deleted         the built-in default is stored in its place

The image therefore always has a value, unless a setting is new in this version: the next broker that starts stores it.

A broker with an embedded store is its whole cluster: the values that it was started with are the cluster's, under what
was changed at run time, as for all other settings.

The other defaults of topics may differ between brokers: the leader applies them once, to what it appends
(`max.message.bytes`, `compression.type`, timestamps) or deletes (retention), or they concern the files of one broker
(segments, indexes). Source: Kafka, where `min.insync.replicas` follows these rules once there are ELRs (KIP-966).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from conveyor.cluster.changes import Change, ConfigPut
from conveyor.cluster.controller.eligible_replicas import changed_defaults
from conveyor.cluster.dynamic_config import broker_owner
from conveyor.cluster.image import ClusterImage, Texts, TopicImage
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.settings.setting import as_text, parse
from conveyor.settings.setting_names import BrokerSetting, cluster_settings
from conveyor.settings.tree import Settings, with_values

MIN_INSYNC = "min.insync.replicas"
_EVERYWHERE = broker_owner(None)


class Difference(NamedTuple):
    """A value that a broker was started with, and the cluster's value, which counts."""

    name: str
    own: str
    of_cluster: str


def without_own_values(given: Settings) -> Settings:
    """Return the settings of a broker, with the built-in defaults in place of its own values for the cluster."""
    return with_values(given, {setting.path: setting.declared.default for setting in cluster_settings().values()})


def founded(image: ClusterImage, given: Settings) -> list[Change]:
    """Store the values that this broker was started with where the cluster has none.

    Until then a leader may have committed by any minimum, so the replicas outside of an ISR are not eligible any more.
    May leave a part to the next call: see `changed_defaults`.
    """
    present = image.configs.get(_EVERYWHERE, {})
    missing = {name: _given(setting, given) for name, setting in cluster_settings().items() if name not in present}
    if not missing:
        return []
    scope, owner = _EVERYWHERE
    any_minimum = Settings()
    return changed_defaults(image, ConfigPut(scope=scope, name=owner, texts={**present, **missing}), any_minimum)


def completed(texts: Texts) -> Texts:
    """Return the texts for all brokers, with the built-in default of each value of the cluster that was deleted."""
    return {name: as_text(setting.declared.default) for name, setting in cluster_settings().items()} | dict(texts)


def of_cluster(texts: Texts) -> Texts:
    """Return those of the texts for all brokers that are the cluster's."""
    return {name: text for name, text in texts.items() if name in cluster_settings()}


def differences(given: Settings, texts: Texts) -> Iterator[Difference]:
    """Return what differs between this broker's own values and the cluster's. texts: for all brokers."""
    for name, text in of_cluster(texts).items():
        setting = cluster_settings()[name]
        own = _given(setting, given)
        if own != as_text(parse(setting.declared, text, label=name)):
            yield Difference(name, own, text)


def min_insync_replicas(image: ClusterImage, topic: TopicImage) -> int:
    """Return `min.insync.replicas` of a topic with several replicas, as this image has it."""
    setting = cluster_settings()[MIN_INSYNC]
    of_all = image.configs.get(_EVERYWHERE, {}).get(MIN_INSYNC, setting.declared.default)
    minimum = parse(setting.declared, topic.config.get(MIN_INSYNC, of_all), label=MIN_INSYNC)
    assert isinstance(minimum, int)
    return minimum


def check_of_one_broker(changes: Sequence[ConfigChange]) -> None:
    """Check changes of one broker's settings. Raises RequestError (INVALID_CONFIG) for a value of the cluster."""
    for change in changes:
        if change.name in cluster_settings() and change.operation is not Operation.DELETE:
            raise RequestError(
                ErrorKind.INVALID_CONFIG,
                f"'{change.name}' has one value in the whole cluster: change it for all brokers, with 'conveyor cluster"
                f" settings --config {change.name}=...' or a broker resource without a name, or change it for a topic",
            )


def _given(setting: BrokerSetting, given: Settings) -> str:
    return as_text(setting.value(given))
