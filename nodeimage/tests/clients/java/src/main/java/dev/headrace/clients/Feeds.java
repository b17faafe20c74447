package dev.headrace.clients;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Producers with acks=all and the client's defaults, each writing name/0, name/1, ... to all partitions of a topic in
 * turn, in a thread of its own, until it is stopped. Times are System.nanoTime() in seconds: Linux's monotonic clock, which
 * others on the machine read too.
 */
final class Feeds {
    private static final Map<String, Feed> RUNNING = new HashMap<>();

    private Feeds() {}

    static void addTo(Map<String, Shell.Command> commands) {
        commands.put("feed_start", Feeds::start);
        commands.put("feed_take", request -> RUNNING.get(request.get("name").asText()).take());
        commands.put("feed_stop", request -> RUNNING.remove(request.get("name").asText()).stop());
    }

    private static Object start(JsonNode request) {
        Feed feed = new Feed(request);
        if (RUNNING.putIfAbsent(request.get("name").asText(), feed) != null) {
            throw new IllegalArgumentException("a feed of that name runs");
        }
        feed.thread.start();
        return true;
    }

    static void stopAll() throws InterruptedException {
        for (Feed each : RUNNING.values()) {
            each.stop();
        }
        RUNNING.clear();
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    /** One producer. `answers` is guarded by its monitor. */
    private static final class Feed {
        private final KafkaProducer<String, String> producer;
        private final String name;
        private final String topic;
        private final int partitions;
        private final long paceMs;
        private List<Object> answers = new ArrayList<>();
        private volatile boolean stopping;
        final Thread thread;

        Feed(JsonNode request) {
            producer = new KafkaProducer<>(
                    Shell.properties(request, "acks", "all"), new StringSerializer(), new StringSerializer());
            name = request.get("name").asText();
            topic = request.get("topic").asText();
            partitions = request.get("partitions").asInt();
            paceMs = request.get("pace_ms").asLong();
            thread = new Thread(this::feed, name);
        }

        private void feed() {
            try (producer) {
                for (int number = 0; !stopping; number++) {
                    send(number);
                    Thread.sleep(paceMs);
                }
            } catch (InterruptedException | RuntimeException thrown) {
                answered(Map.of("error", thrown.toString()));
            }
        }

        private void send(int number) {
            double called = now();
            int partition = number % partitions;
            producer.send(new ProducerRecord<>(topic, partition, null, name + "/" + number), (metadata, thrown) -> {
                Map<String, Object> answer = new LinkedHashMap<>();
                answer.put("number", number);
                answer.put("partition", partition);
                answer.put("offset", thrown == null ? metadata.offset() : -1);
                answer.put("called", called);
                answer.put("error", thrown == null ? null : thrown.toString());
                answered(answer);
            });
        }

        private synchronized void answered(Map<String, Object> answer) {
            answers.add(answer);
        }

        /** The answers since this was called last. */
        synchronized List<Object> take() {
            List<Object> taken = answers;
            answers = new ArrayList<>();
            return taken;
        }

        /** The last answers; closing the producer waits for them. */
        List<Object> stop() throws InterruptedException {
            stopping = true;
            thread.join(120_000);
            return take();
        }
    }
}
