package dev.headrace.clients;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/** Producers: records with keys, headers and timestamps, and many at once. */
final class Producing {
    private Producing() {}

    static void addTo(Map<String, Shell.Command> commands) {
        commands.put("produce", Producing::produce);
        commands.put("produce_many", Producing::produceMany);
        commands.put("partitions_for", Producing::partitionsFor);
        commands.put("init_transactions", Producing::initTransactions);
    }

    private static KafkaProducer<String, String> producer(JsonNode request) {
        return new KafkaProducer<>(
                Shell.properties(request, "max.block.ms", "20000", "delivery.timeout.ms", "30000", "request.timeout.ms", "20000"),
                new StringSerializer(),
                new StringSerializer());
    }

    private static Object produce(JsonNode request) throws Exception {
        List<Object> results = new ArrayList<>();
        try (KafkaProducer<String, String> producer = producer(request)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode each : request.get("records")) {
                ProducerRecord<String, String> record = new ProducerRecord<>(
                        request.get("topic").asText(),
                        each.hasNonNull("partition") ? each.get("partition").asInt() : null,
                        each.hasNonNull("timestamp") ? each.get("timestamp").asLong() : null,
                        Shell.text(each, "key"),
                        Shell.text(each, "value"));
                each.path("headers").fields().forEachRemaining(header -> record.headers()
                        .add(header.getKey(), header.getValue().asText().getBytes(StandardCharsets.UTF_8)));
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> each : sent) {
                RecordMetadata metadata = each.get();
                results.add(Map.of(
                        "partition", metadata.partition(), "offset", metadata.offset(), "timestamp", metadata.timestamp()));
            }
        }
        return results;
    }

    private static Object produceMany(JsonNode request) throws Exception {
        int count = request.get("count").asInt();
        String filler = "x".repeat(request.path("size").asInt(20));
        List<Future<RecordMetadata>> sent = new ArrayList<>(count);
        long last = -1;
        boolean ordered = true;
        try (KafkaProducer<String, String> producer = producer(request)) {
            for (int index = 0; index < count; index++) {
                sent.add(producer.send(new ProducerRecord<>(request.get("topic").asText(), 0, null, index + ":" + filler)));
            }
            for (Future<RecordMetadata> each : sent) {
                long offset = each.get().offset();
                ordered &= offset == last + 1 || last == -1;
                last = offset;
            }
        }
        return Map.of("last", last, "ordered", ordered);
    }

    private static Object initTransactions(JsonNode request) {
        Properties properties =
                Shell.properties(request, "max.block.ms", "20000", "transactional.id", request.get("id").asText());
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            return true;
        }
    }

    private static Object partitionsFor(JsonNode request) {
        try (KafkaProducer<String, String> producer = producer(request)) {
            return producer.partitionsFor(request.get("topic").asText()).stream()
                    .map(each -> Map.of("topic", each.topic(), "partition", each.partition(), "leader", each.leader().id()))
                    .toList();
        }
    }
}
