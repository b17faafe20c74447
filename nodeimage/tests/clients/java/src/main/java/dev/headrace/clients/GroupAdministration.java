package dev.headrace.clients;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** AdminClient: consumer groups and their committed offsets. */
final class GroupAdministration {
    private GroupAdministration() {}

    static void addTo(Map<String, Shell.Command> commands) {
        commands.put("list_groups", Administration.with((admin, request) -> admin.listConsumerGroups().all().get().stream()
                .map(each -> each.groupId())
                .toList()));
        commands.put("describe_group", Administration.with(GroupAdministration::describe));
        commands.put("delete_group", Administration.with(GroupAdministration::delete));
        commands.put("group_offsets", Administration.with(GroupAdministration::offsets));
        commands.put("set_group_offsets", Administration.with(GroupAdministration::setOffsets));
        commands.put("delete_group_offset", Administration.with(GroupAdministration::deleteOffset));
    }

    private static String group(JsonNode request) {
        return request.get("group").asText();
    }

    @SuppressWarnings("deprecation") // state() is what both 3.9 and 4.x have
    private static Object describe(Admin admin, JsonNode request) throws Exception {
        var found = admin.describeConsumerGroups(List.of(group(request))).all().get().get(group(request));
        List<Object> members = new ArrayList<>();
        for (MemberDescription each : found.members()) {
            Map<String, Object> member = new LinkedHashMap<>();
            member.put("client", each.clientId());
            member.put("instance", each.groupInstanceId().orElse(null));
            member.put("partitions", each.assignment().topicPartitions().stream().map(Object::toString).sorted().toList());
            members.add(member);
        }
        return Map.of("state", found.state().toString(), "assignor", found.partitionAssignor(), "members", members);
    }

    private static Object delete(Admin admin, JsonNode request) throws Exception {
        admin.deleteConsumerGroups(List.of(group(request))).all().get();
        return true;
    }

    private static Object offsets(Admin admin, JsonNode request) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        admin.listConsumerGroupOffsets(group(request)).partitionsToOffsetAndMetadata().get().forEach((partition, committed) ->
                found.put(partition.toString(), committed == null ? null : List.of(committed.offset(), committed.metadata())));
        return found;
    }

    /** "offsets" maps partition numbers of "topic" to offsets. */
    private static Object setOffsets(Admin admin, JsonNode request) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
        request.get("offsets").fields().forEachRemaining(each -> wanted.put(
                new TopicPartition(request.get("topic").asText(), Integer.parseInt(each.getKey())),
                new OffsetAndMetadata(each.getValue().asLong(), "by hand")));
        admin.alterConsumerGroupOffsets(group(request), wanted).all().get();
        return true;
    }

    private static Object deleteOffset(Admin admin, JsonNode request) throws Exception {
        TopicPartition partition = new TopicPartition(request.get("topic").asText(), request.path("partition").asInt(0));
        admin.deleteConsumerGroupOffsets(group(request), Set.of(partition)).all().get();
        return true;
    }
}
