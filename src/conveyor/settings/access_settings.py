"""Settings of who may do what."""

from dataclasses import dataclass

from conveyor.settings.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who may do what. The ACLs themselves are in the metadata of the cluster."""

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

    @property
    def super_user_names(self) -> frozenset[str]:
        """The super users, as `User:admin`."""
        return frozenset(name.strip() for name in self.super_users.split(";") if name.strip())
