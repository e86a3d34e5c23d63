"""The errors of kafka-python's client, as commands show them."""

import pytest
from kafka.errors import ClusterAuthorizationFailedError, KafkaTimeoutError

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.cli.terminal.kafka_python import errors_of_kafka_python

RESPONSE = (
    "Request 'X()' failed with response 'XResponse(error_code=31, error_message='no right to Describe Cluster')'."
)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ClusterAuthorizationFailedError(RESPONSE), "no right to Describe Cluster"),
        (KafkaTimeoutError("no answer"), "KafkaTimeoutError: no answer"),
    ],
)
def test_an_error_is_told_in_the_words_of_the_broker(error: Exception, told: str) -> None:
    with pytest.raises(ClientError) as raised, errors_of_kafka_python():
        raise error
    assert str(raised.value) == told
