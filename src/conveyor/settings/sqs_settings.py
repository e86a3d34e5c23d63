"""Settings of the Amazon SQS API, which the HTTP listener serves."""

from dataclasses import dataclass

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
    profile: str = setting(
        "relaxed",
        "`strict` also enforces those rules of Amazon SQS that make a client wait: one PurgeQueue in 60 seconds.",
        choices=("relaxed", STRICT),
        live=True,
    )
