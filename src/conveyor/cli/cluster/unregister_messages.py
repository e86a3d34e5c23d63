"""UnregisterBroker (key 64, KIP-500) for kafka-python, which lacks it. The JSON files here have its fields."""

from kafka.protocol.api_message import ApiMessage


class UnregisterBrokerRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """See the module's docstring."""


class UnregisterBrokerResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]
    """See the module's docstring."""
