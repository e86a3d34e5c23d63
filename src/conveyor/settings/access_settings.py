"""Settings of who may do what."""

from dataclasses import dataclass

from conveyor.settings.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Access control of clients. The ACLs themselves are in the metadata of the cluster."""

    enabled: bool = setting(
        False,
        "Permit clients only what an ACL allows. Otherwise each client that may connect may do everything."
        " Set it for all brokers of a cluster.",
    )
    super_users: str = setting(
        "",
        "The users who may do everything, whatever the ACLs say: `User:admin;User:ops`.",
        unit="list of users, separated by semicolons",
        kafka="super.users",
    )
    allow_if_no_acl: bool = setting(
        False,
        "Permit everybody everything with a resource that no ACL names.",
        kafka="allow.everyone.if.no.acl.found",
    )

    audit: bool = setting(
        True,
        "Write what clients are permitted and refused to the topic `__audit`, if `access.enabled` is true. See"
        " docs/security.md.",
    )
    audit_partitions: int = setting(
        1,
        "Partitions of `__audit`, for a topic that is yet to be created. One keeps all its records in one order.",
        unit="partitions",
        minimum=1,
        maximum=1000,
    )
    audit_replication_factor: int = setting(
        3,
        "Replicas of `__audit`. The topic is not created before that many brokers have registered. With embedded"
        " metadata, no more than there are workers.",
        unit="replicas",
        minimum=1,
    )
    audit_max_bytes_per_second: int = setting(
        16_384,
        "Bytes that a broker writes to `__audit` in a second on average, about refused requests, and as many about"
        " reads and writes, so that no client can fill the disk. In a minute, refusals that exceed them are dropped and"
        " counted in conveyor_audit_dropped_total; counts of reads and writes wait for a later minute.",
        unit="bytes",
        minimum=1,
    )

    @property
    def super_user_names(self) -> frozenset[str]:
        """The super users, as `User:admin`."""
        return frozenset(name.strip() for name in self.super_users.split(";") if name.strip())
