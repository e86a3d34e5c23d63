"""Settings of the Amazon SQS API, which the HTTP listener serves."""

from dataclasses import dataclass

from conveyor.kernel.errors import SettingsError
from conveyor.settings.setting import setting

STRICT = "strict"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsSettings:
    """The Amazon SQS API."""

    endpoint: str = setting(
        "",
        "The address at the beginning of the URLs of queues, as `https://queues.example.com`. By default it is the one"
        " at which the client has sent its request.",
        unit="URL without a path",
        pattern=r"(https?://[A-Za-z0-9.:\[\]_-]+)?",
        live=True,
    )
    region: str = setting(
        "us-east-1",
        "The region in the ARNs of queues.",
        unit="name of a region",
        pattern=r"[a-z0-9-]{1,40}",
        live=True,
    )
    keys_file: str = setting(
        "",
        "A file of the access keys of users, one a line: access key id, secret access key, user. Requests to SQS log in"
        " by a signature of one of them, if `network.http_users` is set. The same on all brokers.",
        unit="path",
    )
    profile: str = setting(
        "relaxed",
        "`strict` also enforces those rules of Amazon SQS that make a client wait: one PurgeQueue in 60 seconds.",
        choices=("relaxed", STRICT),
        live=True,
    )

    def check(self, *, has_users: bool) -> None:
        """Check the relations of these settings. has_users: whether clients of HTTP log in. Raises SettingsError."""
        if self.keys_file and not has_users:
            raise SettingsError("sqs.keys_file has no effect without users: set network.http_users=true, or remove it")
