import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.net.InetAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/** Kafka's own authorizer: each line of input has ACLs and questions, each line of output the decisions. */
public final class Authorizer {
    /** Who asks. */
    record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        @Override
        public String listenerName() {
            return "PLAINTEXT";
        }

        @Override
        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.PLAINTEXT;
        }

        @Override
        public int requestType() {
            return 3;
        }

        @Override
        public int requestVersion() {
            return 12;
        }

        @Override
        public String clientId() {
            return "conformance";
        }

        @Override
        public int correlationId() {
            return 1;
        }
    }

    private Authorizer() {}

    public static void main(String[] given) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines = Client.input();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = json.readTree(line);
            try (StandardAuthorizer authorizer = authorizer(asked)) {
                List<Boolean> decisions = new ArrayList<>();
                for (JsonNode question : asked.get("questions")) {
                    decisions.add(decision(authorizer, question) == AuthorizationResult.ALLOWED);
                }
                Client.say(Map.of("decisions", decisions));
            }
        }
    }

    private static StandardAuthorizer authorizer(JsonNode asked) {
        StandardAuthorizer authorizer = new StandardAuthorizer();
        authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        authorizer.configure(Map.of(
            "node.id", 1,
            StandardAuthorizer.SUPER_USERS_CONFIG, asked.get("super_users").asText(),
            StandardAuthorizer.ALLOW_EVERYONE_IF_NO_ACL_IS_FOUND_CONFIG, asked.get("allows_if_none").asText()));
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        for (JsonNode acl : asked.get("acls")) {
            acls.put(Uuid.randomUuid(), new StandardAcl(
                ResourceType.fromCode((byte) acl.get(0).asInt()),
                acl.get(1).asText(),
                PatternType.fromCode((byte) acl.get(2).asInt()),
                acl.get(3).asText(),
                acl.get(4).asText(),
                AclOperation.fromCode((byte) acl.get(5).asInt()),
                AclPermissionType.fromCode((byte) acl.get(6).asInt())));
        }
        authorizer.loadSnapshot(acls);
        authorizer.completeInitialLoad();
        return authorizer;
    }

    /** A question without a name is about any resource of the type. */
    private static AuthorizationResult decision(StandardAuthorizer authorizer, JsonNode question) throws Exception {
        KafkaPrincipal principal = new KafkaPrincipal("User", question.get(0).asText());
        Context context = new Context(principal, InetAddress.getByName(question.get(1).asText()));
        AclOperation operation = AclOperation.fromCode((byte) question.get(2).asInt());
        ResourceType type = ResourceType.fromCode((byte) question.get(3).asInt());
        JsonNode name = question.get(4);
        if (name.isNull()) {
            return authorizer.authorizeByResourceType(context, operation, type);
        }
        ResourcePattern resource = new ResourcePattern(type, name.asText(), PatternType.LITERAL);
        return authorizer.authorize(context, List.of(new Action(operation, resource, 1, false, false))).get(0);
    }
}
