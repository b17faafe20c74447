package dev.headrace.clients;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Consumers without a group: assign, seek, look up offsets. */
final class Consuming {
    private Consuming() {}

    static void addTo(Map<String, Shell.Command> commands) {
        commands.put("read", Consuming::read);
        commands.put("offsets", Consuming::offsets);
        commands.put("topics_seen", Consuming::topicsSeen);
    }

    static KafkaConsumer<String, String> consumer(JsonNode request) {
        return new KafkaConsumer<>(
                Shell.properties(
                        request, "enable.auto.commit", "false", "auto.offset.reset", "earliest", "default.api.timeout.ms", "20000"),
                new StringDeserializer(),
                new StringDeserializer());
    }

    static Map<String, Object> describe(ConsumerRecord<String, String> record) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("topic", record.topic());
        found.put("partition", record.partition());
        found.put("offset", record.offset());
        found.put("key", record.key());
        found.put("value", record.value());
        found.put("timestamp", record.timestamp());
        found.put("timestamp_type", record.timestampType().name());
        Map<String, String> headers = new LinkedHashMap<>();
        record.headers().forEach(each -> headers.put(each.key(), new String(each.value(), StandardCharsets.UTF_8)));
        found.put("headers", headers);
        return found;
    }

    /**
     * Reads "expect" records of partitions "partitions" (0 alone unless named) from offset "from", or from the
     * beginning, or from the group's committed offsets if "from" is "committed"; fewer if no more come for 15 s.
     */
    private static Object read(JsonNode request) {
        List<Object> records = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(request)) {
            List<TopicPartition> partitions = partitions(request);
            consumer.assign(partitions);
            JsonNode from = request.path("from");
            if (from.isNumber()) {
                partitions.forEach(each -> consumer.seek(each, from.asLong()));
            } else if (!from.asText().equals("committed")) {
                consumer.seekToBeginning(partitions);
            }
            int expected = request.get("expect").asInt();
            long deadline = System.nanoTime() + 15_000_000_000L;
            while (records.size() < expected && System.nanoTime() < deadline) {
                consumer.poll(Duration.ofMillis(200)).forEach(each -> records.add(describe(each)));
            }
            if (request.path("commit").asBoolean()) {
                consumer.commitSync();
            }
        }
        return records;
    }

    /** Beginning, end, and for each of "timestamps" the first offset at or after it, with its timestamp. */
    private static Object offsets(JsonNode request) {
        try (KafkaConsumer<String, String> consumer = consumer(request)) {
            List<TopicPartition> partitions = partitions(request);
            Map<String, Object> found = new LinkedHashMap<>();
            found.put("beginning", byPartition(consumer.beginningOffsets(partitions)));
            found.put("end", byPartition(consumer.endOffsets(partitions)));
            List<Object> times = new ArrayList<>();
            for (JsonNode timestamp : request.path("timestamps")) {
                Map<TopicPartition, Long> asked = new HashMap<>();
                partitions.forEach(each -> asked.put(each, timestamp.asLong()));
                OffsetAndTimestamp first = consumer.offsetsForTimes(asked).get(partitions.get(0));
                times.add(first == null ? null : List.of(first.offset(), first.timestamp()));
            }
            found.put("times", times);
            return found;
        }
    }

    private static Object topicsSeen(JsonNode request) {
        try (KafkaConsumer<String, String> consumer = consumer(request)) {
            return consumer.listTopics().keySet();
        }
    }

    private static Map<String, Long> byPartition(Map<TopicPartition, Long> offsets) {
        Map<String, Long> found = new LinkedHashMap<>();
        offsets.forEach((partition, offset) -> found.put(String.valueOf(partition.partition()), offset));
        return found;
    }

    private static List<TopicPartition> partitions(JsonNode request) {
        String topic = request.get("topic").asText();
        List<TopicPartition> partitions = new ArrayList<>();
        request.path("partitions").forEach(each -> partitions.add(new TopicPartition(topic, each.asInt())));
        return partitions.isEmpty() ? List.of(new TopicPartition(topic, 0)) : partitions;
    }
}
