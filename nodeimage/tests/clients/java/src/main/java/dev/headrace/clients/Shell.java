package dev.headrace.clients;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;

/**
 * Reads one JSON object a line, {"command": ..., "bootstrap": ..., ...}, does it with a Kafka Java client, and answers with
 * one line: {"ok": ...}, or {"error": class, "message": ...} with what the client threw. One process serves many
 * commands, since a JVM takes a second to start. It ends when its input does.
 */
public final class Shell {
    static final ObjectMapper JSON = new ObjectMapper();

    interface Command {
        Object run(JsonNode request) throws Exception;
    }

    private Shell() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, Command> commands = new LinkedHashMap<>();
        Producing.addTo(commands);
        Consuming.addTo(commands);
        Feeds.addTo(commands);
        Members.addTo(commands);
        Administration.addTo(commands);
        GroupAdministration.addTo(commands);
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(answer(commands, JSON.readTree(line))));
        }
        Feeds.stopAll();
        Members.stopAll();
    }

    private static Map<String, Object> answer(Map<String, Command> commands, JsonNode request) {
        Map<String, Object> answer = new LinkedHashMap<>();
        try {
            Command command = commands.get(request.get("command").asText());
            if (command == null) {
                throw new IllegalArgumentException("no such command: " + request);
            }
            answer.put("ok", command.run(request));
        } catch (Exception thrown) {
            Throwable cause = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
            answer.put("error", cause.getClass().getSimpleName());
            String inner = cause.getCause() == null ? "" : " (" + cause.getCause() + ")";
            answer.put("message", cause.getMessage() + inner);
        }
        return answer;
    }

    /** A client's properties: the request's bootstrap servers and "config", over `defaults` (key, value, ...). */
    static Properties properties(JsonNode request, String... defaults) {
        Properties properties = new Properties();
        for (int at = 0; at < defaults.length; at += 2) {
            properties.put(defaults[at], defaults[at + 1]);
        }
        properties.put("bootstrap.servers", request.get("bootstrap").asText());
        request.path("config").fields().forEachRemaining(each -> properties.put(each.getKey(), each.getValue().asText()));
        return properties;
    }

    static String text(JsonNode node, String field) {
        return node.hasNonNull(field) ? node.get(field).asText() : null;
    }
}
