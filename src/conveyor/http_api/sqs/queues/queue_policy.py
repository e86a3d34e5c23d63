"""The policy of a queue, to which AddPermission adds statements. It is kept and shown, and has no effect.

{"Version": "2008-10-17", "Id": "<arn>/SQSDefaultPolicy", "Statement": [{"Sid": "label", "Effect": "Allow",
 "Principal": {"AWS": "arn:aws:iam::<account>:root"}, "Action": "SQS:SendMessage", "Resource": "<arn>"}]}
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind, invalid_parameter, missing_parameter

ACTIONS_OF_PERMISSIONS = frozenset(
    (
        "*", "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl",
        "ListDeadLetterSourceQueues", "PurgeQueue", "ReceiveMessage", "SendMessage",
    )
)  # fmt: skip

_OWNERS = frozenset(
    (
        "AddPermission", "CancelMessageMoveTask", "CreateQueue", "DeleteQueue", "ListMessageMoveTasks", "ListQueueTags",
        "ListQueues", "RemovePermission", "SetQueueAttributes", "StartMessageMoveTask", "TagQueue", "UntagQueue",
    )
)  # fmt: skip
"""The actions that no permission can be given for."""
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ACCOUNT = re.compile(r"[0-9]{12}")
_MAX_ACTIONS = 7


def with_permission(policy: str, arn: str, label: str, accounts: Sequence[str], actions: Sequence[str]) -> str:
    """Return a policy with one statement more. policy: empty for none. Raises SqsError."""
    _check(label, accounts, actions)
    document, statements = _read(policy, arn)
    if any(statement.get("Sid") == label for statement in statements):
        raise _wrong(label, "Already exists.")
    principals = [f"arn:aws:iam::{account}:root" for account in accounts]
    names = [f"SQS:{action}" for action in actions]
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": principals[0] if len(principals) == 1 else principals},
        "Action": names[0] if len(names) == 1 else names,
        "Resource": arn,
    }
    return _written({**document, "Statement": [*statements, statement]})


def without_permission(policy: str, arn: str, label: str) -> str:
    """Return a policy without a statement; empty if it was the last. Raises SqsError."""
    document, statements = _read(policy, arn)
    left = [statement for statement in statements if statement.get("Sid") != label]
    if len(left) == len(statements):
        raise _wrong(label, "can't find label.")
    return _written({**document, "Statement": left}) if left else ""


def _check(label: str, accounts: Sequence[str], actions: Sequence[str]) -> None:
    if _LABEL.fullmatch(label) is None:
        raise _wrong(label, "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.")
    for account in accounts:
        if _ACCOUNT.fullmatch(account) is None:
            raise _unverified(account[:100])
    if len(actions) > _MAX_ACTIONS:
        reason = f"{len(actions)} Actions were found, maximum allowed is {_MAX_ACTIONS}."
        raise SqsError(SqsErrorKind.OVER_LIMIT, reason)
    if not actions:
        raise missing_parameter("Actions")
    if not accounts:
        raise _unverified("[]")
    for action in actions:
        if action not in ACTIONS_OF_PERMISSIONS:
            why = "Please refer to the appropriate WSDL for a list of valid actions. "
            if action in _OWNERS:
                why = "Only the queue owner is allowed to invoke this action."
            raise invalid_parameter(f"Value SQS:{action[:100]} for parameter ActionName is invalid. Reason: {why}")


def _read(policy: str, arn: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a policy and its statements. One that is none of SQS's form is replaced."""
    try:
        document = msgspec.json.decode(policy or b"{}", type=dict[str, Any])
        statements = msgspec.convert(document.get("Statement", []), list[dict[str, Any]])
    except (msgspec.MsgspecError, RecursionError):
        document, statements = {}, []
    return {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", **document}, statements


def _written(document: dict[str, Any]) -> str:
    return msgspec.json.encode(document).decode()


def _unverified(account: str) -> SqsError:
    return invalid_parameter(f"Value {account} for parameter PrincipalId is invalid. Reason: Unable to verify.")


def _wrong(label: str, reason: str) -> SqsError:
    return invalid_parameter(f"Value {label[:100]} for parameter Label is invalid. Reason: {reason}")
