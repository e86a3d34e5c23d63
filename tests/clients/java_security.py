"""How Java's applications connect: the settings of the Java client, and of the machine that runs it."""

from collections.abc import Mapping
from pathlib import Path

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def java_client(connection: Mapping[str, str]) -> dict[str, str]:
    """Return the client's settings for a connection, as `tests.clients.python.security` has it; as Security.java."""
    settings = {
        "security.protocol": connection["protocol"],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": connection["ca"],
    }
    if "certificate" in connection:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": Path(connection["certificate"]).read_text(),
            "ssl.keystore.key": Path(connection["key"]).read_text(),
        }
    if "user" in connection:
        login = f'username="{connection["user"]}" password="{connection["password"]}"'
        settings |= {"sasl.mechanism": connection["mechanism"], "sasl.jaas.config": f"{_SCRAM} required {login};"}
    if "token" in connection:
        settings |= {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": Path(connection["token"]).as_uri(),
            "sasl.oauthbearer.jwt.retriever.class": f"{_OAUTH}.FileJwtRetriever",
            "sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
        }
    return settings


def java_options(connection: Mapping[str, str]) -> str:
    """Return what JDK_JAVA_OPTIONS has to have: which file may hold a token."""
    allowed = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
    return f"-D{allowed}={Path(connection['token']).as_uri()}" if "token" in connection else ""
