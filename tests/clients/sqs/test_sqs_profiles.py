"""What the settings of SQS change: the strict profile, the region, the address in URLs."""

from conveyor.testing import Broker
from tests.clients.sqs.conftest import connect
from tests.clients.sqs.sqs_requests import arn, bodies, receive, refusal_of


def test_strict_profile_purges_once_in_a_minute() -> None:
    settings = {"sqs.profile": "strict", "sqs.region": "eu-west-1", "sqs.endpoint": "https://queues.example"}
    with Broker(memory=True, manual_clock=True, settings=settings) as broker:
        sqs = connect(broker)
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        assert url == "https://queues.example/000000000000/q"
        assert arn(sqs, url) == "arn:aws:sqs:eu-west-1:000000000000:q"
        sqs.purge_queue(QueueUrl=url)
        broker.clock.advance(seconds=59)
        refused = refusal_of(sqs.purge_queue, QueueUrl=url)
        text = "Only one PurgeQueue operation on q is allowed every 60 seconds."
        assert (refused.code, refused.message) == ("AWS.SimpleQueueService.PurgeQueueInProgress", text)
        broker.clock.advance(seconds=1)
        sqs.purge_queue(QueueUrl=url)
        sqs.close()


def test_messages_end_with_their_retention() -> None:
    with Broker(memory=True, manual_clock=True) as broker:
        sqs = connect(broker)
        url = sqs.create_queue(QueueName="q", Attributes={"MessageRetentionPeriod": "3600"})["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        broker.clock.advance(seconds=3000)
        assert bodies(receive(sqs, url, VisibilityTimeout=0)) == ["x"]
        broker.clock.advance(seconds=1200)
        assert receive(sqs, url) == []
        sqs.close()
