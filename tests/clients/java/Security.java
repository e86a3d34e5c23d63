import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;

/** How the client connects: CONFORMANCE_SECURITY in the environment is a JSON object; without it, in the clear. */
final class Security {
    private Security() {}

    static Properties settings() throws IOException {
        Properties settings = new Properties();
        JsonNode given = new ObjectMapper().readTree(System.getenv().getOrDefault("CONFORMANCE_SECURITY", "{}"));
        if (given.has("protocol")) {
            settings.put("security.protocol", given.get("protocol").asText());
        }
        if (given.has("ca")) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", given.get("ca").asText());
        }
        if (given.has("certificate")) {
            settings.put("ssl.keystore.type", "PEM");
            settings.put("ssl.keystore.certificate.chain", content(given.get("certificate")));
            settings.put("ssl.keystore.key", content(given.get("key")));
        }
        if (given.has("token")) {
            String file = Path.of(given.get("token").asText()).toUri().toString();
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", file);
            settings.put("sasl.mechanism", "OAUTHBEARER");
            settings.put("sasl.oauthbearer.token.endpoint.url", file);
            settings.put("sasl.oauthbearer.jwt.retriever.class",
                "org.apache.kafka.common.security.oauthbearer.FileJwtRetriever");
            settings.put("sasl.login.callback.handler.class",
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler");
            settings.put("sasl.jaas.config",
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;");
        }
        if (given.has("user")) {
            settings.put("sasl.mechanism", given.get("mechanism").asText());
            settings.put("sasl.jaas.config",
                "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"%s\" password=\"%s\";"
                    .formatted(given.get("user").asText(), given.get("password").asText()));
        }
        return settings;
    }

    private static String content(JsonNode file) throws IOException {
        return Files.readString(Path.of(file.asText()));
    }
}
