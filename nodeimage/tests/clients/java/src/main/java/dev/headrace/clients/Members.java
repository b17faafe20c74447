package dev.headrace.clients;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;

/** Members of consumer groups, each polling in a thread of its own under a name until it is stopped. */
final class Members {
    private static final Map<String, Member> RUNNING = new LinkedHashMap<>();

    private Members() {}

    static void addTo(Map<String, Shell.Command> commands) {
        commands.put("member_start", Members::start);
        commands.put("member_state", request -> RUNNING.get(request.get("name").asText()).state());
        commands.put("member_stop", Members::stop);
    }

    private static Object start(JsonNode request) {
        Member member = new Member(request);
        if (RUNNING.putIfAbsent(request.get("name").asText(), member) != null) {
            throw new IllegalArgumentException("a member of that name runs");
        }
        member.thread.start();
        return true;
    }

    private static Object stop(JsonNode request) throws InterruptedException {
        return RUNNING.remove(request.get("name").asText()).stop();
    }

    static void stopAll() throws InterruptedException {
        for (Member each : RUNNING.values()) {
            each.stop();
        }
        RUNNING.clear();
    }

    /** One consumer. Everything that the commands look at is guarded by its monitor. */
    private static final class Member implements ConsumerRebalanceListener {
        private final KafkaConsumer<String, String> consumer;
        private final boolean commits;
        private final TreeSet<String> owned = new TreeSet<>();
        private final List<Object> records = new ArrayList<>();
        private int assigned;
        private int revoked;
        private int lost;
        private String error;
        private volatile boolean stopping;
        final Thread thread;

        Member(JsonNode request) {
            consumer = Consuming.consumer(request);
            commits = request.path("commit").asBoolean(true);
            if (request.has("pattern")) {
                consumer.subscribe(Pattern.compile(request.get("pattern").asText()), this);
            } else {
                List<String> topics = new ArrayList<>();
                request.get("topics").forEach(each -> topics.add(each.asText()));
                consumer.subscribe(topics, this);
            }
            thread = new Thread(this::poll, request.get("name").asText());
        }

        private void poll() {
            try (consumer) {
                while (!stopping) {
                    var polled = consumer.poll(Duration.ofMillis(200));
                    synchronized (this) {
                        polled.forEach(each -> records.add(Consuming.describe(each)));
                    }
                    if (commits && !polled.isEmpty()) {
                        consumer.commitSync();
                    }
                }
            } catch (WakeupException asked) {
                // stop() woke it; the consumer closes, and leaves its group unless it is static.
            } catch (RuntimeException thrown) {
                synchronized (this) {
                    error = thrown.toString();
                }
            }
        }

        synchronized Map<String, Object> state() {
            Map<String, Object> state = new LinkedHashMap<>();
            state.put("owned", List.copyOf(owned));
            state.put("records", List.copyOf(records));
            state.put("assigned", assigned);
            state.put("revoked", revoked);
            state.put("lost", lost);
            state.put("error", error);
            return state;
        }

        Map<String, Object> stop() throws InterruptedException {
            stopping = true;
            consumer.wakeup();
            thread.join(30_000);
            return state();
        }

        @Override
        public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assigned++;
            partitions.forEach(each -> owned.add(each.toString()));
        }

        @Override
        public synchronized void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked += partitions.size();
            partitions.forEach(each -> owned.remove(each.toString()));
        }

        @Override
        public synchronized void onPartitionsLost(Collection<TopicPartition> partitions) {
            lost += partitions.size();
            partitions.forEach(each -> owned.remove(each.toString()));
        }
    }
}
