"""The quota for partitions that are created and deleted (KIP-599)."""

from conveyor.kafka_api.wire.call import KafkaCall


def charge_mutations(call: KafkaCall, partitions: int, *, strict_from: int) -> None:
    """Charge the quota for partitions to create or delete.

    From version `strict_from` on, raises RequestError (THROTTLING_QUOTA_EXCEEDED) while the quota is exceeded.
    """
    if call.meter is not None:
        call.meter.mutated(partitions, strict=call.header.api_version >= strict_from)
