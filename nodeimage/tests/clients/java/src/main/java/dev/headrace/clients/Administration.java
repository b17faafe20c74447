package dev.headrace.clients;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** AdminClient: topics, configs, the cluster, offsets, records. */
final class Administration {
    private Administration() {}

    interface Call {
        Object run(Admin admin, JsonNode request) throws Exception;
    }

    static void addTo(Map<String, Shell.Command> commands) {
        commands.put("create_topic", with(Administration::createTopic));
        commands.put("delete_topic", with(Administration::deleteTopic));
        commands.put("list_topics", with((admin, request) -> admin.listTopics().names().get()));
        commands.put("describe_topic", with(Administration::describeTopic));
        commands.put("create_partitions", with(Administration::createPartitions));
        commands.put("describe_configs", with(Administration::describeConfigs));
        commands.put("set_config", with(Administration::setConfig));
        commands.put("describe_cluster", with(Administration::describeCluster));
        commands.put("list_offsets", with(Administration::listOffsets));
        commands.put("delete_records", with(Administration::deleteRecords));
        commands.put("log_dirs", with(Administration::logDirs));
        commands.put("features", with(Administration::features));
        commands.put("update_feature", with(Administration::updateFeature));
        commands.put("reassignments", with((admin, request) -> admin.listPartitionReassignments().reassignments().get().size()));
    }

    private static Object features(Admin admin, JsonNode request) throws Exception {
        var found = admin.describeFeatures().featureMetadata().get();
        Map<String, Object> finalized = new LinkedHashMap<>();
        found.finalizedFeatures().forEach((name, range) -> finalized.put(name, range.maxVersionLevel()));
        Map<String, Object> supported = new LinkedHashMap<>();
        found.supportedFeatures().forEach((name, range) -> supported.put(name, List.of(range.minVersion(), range.maxVersion())));
        return Map.of("finalized", finalized, "supported", supported, "epoch", found.finalizedFeaturesEpoch().orElse(-1L));
    }

    /** "type" is a FeatureUpdate.UpgradeType. */
    private static Object updateFeature(Admin admin, JsonNode request) throws Exception {
        FeatureUpdate update = new FeatureUpdate(
                (short) request.get("level").asInt(), FeatureUpdate.UpgradeType.valueOf(request.get("type").asText()));
        UpdateFeaturesOptions options = new UpdateFeaturesOptions().validateOnly(request.path("validate_only").asBoolean());
        admin.updateFeatures(Map.of(request.get("feature").asText(), update), options).all().get();
        return true;
    }

    static Shell.Command with(Call call) {
        return request -> {
            try (Admin admin = Admin.create(Shell.properties(request, "default.api.timeout.ms", "20000", "request.timeout.ms", "15000"))) {
                return call.run(admin, request);
            }
        };
    }

    private static String topic(JsonNode request) {
        return request.get("topic").asText();
    }

    private static Object createTopic(Admin admin, JsonNode request) throws Exception {
        Optional<Integer> partitions =
                request.hasNonNull("partitions") ? Optional.of(request.get("partitions").asInt()) : Optional.empty();
        Map<String, String> configs = new HashMap<>();
        request.path("configs").fields().forEachRemaining(each -> configs.put(each.getKey(), each.getValue().asText()));
        var created = admin.createTopics(List.of(new NewTopic(topic(request), partitions, Optional.empty()).configs(configs)));
        return Map.of(
                "id", created.topicId(topic(request)).get().toString(),
                "partitions", created.numPartitions(topic(request)).get(),
                "replication", created.replicationFactor(topic(request)).get());
    }

    private static Object deleteTopic(Admin admin, JsonNode request) throws Exception {
        admin.deleteTopics(List.of(topic(request))).all().get();
        return true;
    }

    private static Object describeTopic(Admin admin, JsonNode request) throws Exception {
        var found = admin.describeTopics(List.of(topic(request))).allTopicNames().get().get(topic(request));
        List<Object> partitions = new ArrayList<>();
        found.partitions().forEach(each -> partitions.add(Map.of(
                "partition", each.partition(),
                "leader", each.leader().id(),
                "replicas", each.replicas().size(),
                "isr", each.isr().size())));
        return Map.of("name", found.name(), "id", found.topicId().toString(), "partitions", partitions);
    }

    private static Object createPartitions(Admin admin, JsonNode request) throws Exception {
        admin.createPartitions(Map.of(topic(request), NewPartitions.increaseTo(request.get("count").asInt()))).all().get();
        return true;
    }

    private static ConfigResource resource(JsonNode request) {
        return request.has("broker")
                ? new ConfigResource(ConfigResource.Type.BROKER, request.get("broker").asText())
                : new ConfigResource(ConfigResource.Type.TOPIC, topic(request));
    }

    private static Object describeConfigs(Admin admin, JsonNode request) throws Exception {
        Map<String, Object> configs = new LinkedHashMap<>();
        for (ConfigEntry each : admin.describeConfigs(List.of(resource(request))).all().get().get(resource(request)).entries()) {
            Map<String, Object> entry = new LinkedHashMap<>();
            entry.put("value", each.value());
            entry.put("source", each.source().name());
            entry.put("default", each.isDefault());
            entry.put("read_only", each.isReadOnly());
            configs.put(each.name(), entry);
        }
        return configs;
    }

    /** Sets "key" to "value", or back to its default where there is no value. */
    private static Object setConfig(Admin admin, JsonNode request) throws Exception {
        ConfigEntry entry = new ConfigEntry(request.get("key").asText(), Shell.text(request, "value"));
        AlterConfigOp.OpType how = entry.value() == null ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
        admin.incrementalAlterConfigs(Map.of(resource(request), List.of(new AlterConfigOp(entry, how)))).all().get();
        return true;
    }

    private static Object describeCluster(Admin admin, JsonNode request) throws Exception {
        var cluster = admin.describeCluster();
        List<Integer> nodes = cluster.nodes().get().stream().map(each -> each.id()).toList();
        return Map.of("id", cluster.clusterId().get(), "controller", cluster.controller().get().id(), "nodes", nodes);
    }

    private static Object listOffsets(Admin admin, JsonNode request) throws Exception {
        TopicPartition partition = new TopicPartition(topic(request), request.path("partition").asInt(0));
        Map<String, OffsetSpec> specs = Map.of(
                "earliest", OffsetSpec.earliest(),
                "latest", OffsetSpec.latest(),
                "max_timestamp", OffsetSpec.maxTimestamp(),
                "at", OffsetSpec.forTimestamp(request.path("timestamp").asLong(0)));
        Map<String, Object> found = new LinkedHashMap<>();
        for (Map.Entry<String, OffsetSpec> each : specs.entrySet()) {
            var result = admin.listOffsets(Map.of(partition, each.getValue())).partitionResult(partition).get();
            found.put(each.getKey(), List.of(result.offset(), result.timestamp()));
        }
        return found;
    }

    private static Object deleteRecords(Admin admin, JsonNode request) throws Exception {
        TopicPartition partition = new TopicPartition(topic(request), 0);
        var deleted = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(request.get("before").asLong())));
        return deleted.lowWatermarks().get(partition).get().lowWatermark();
    }

    /** Bytes that each broker says it stores of the topic. */
    private static Object logDirs(Admin admin, JsonNode request) throws Exception {
        List<Integer> brokers = admin.describeCluster().nodes().get().stream().map(each -> each.id()).toList();
        Map<String, Object> sizes = new LinkedHashMap<>();
        admin.describeLogDirs(brokers).allDescriptions().get().forEach((broker, dirs) -> sizes.put(
                broker.toString(),
                dirs.values().stream()
                        .flatMap(each -> each.replicaInfos().entrySet().stream())
                        .filter(each -> each.getKey().topic().equals(topic(request)))
                        .mapToLong(each -> each.getValue().size())
                        .sum()));
        return sizes;
    }
}
