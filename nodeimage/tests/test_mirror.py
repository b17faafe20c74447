"""Tests lie beside what they test: `tests/<package>/test_<module>.py` for each module with logic.

Whoever adds a module adds its test module. What is excepted stands here, with why; a module that has tests of its own
by now leaves the list.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREES = {
    "nodeimage/headrace": "nodeimage/tests",
    "spark/headrace_spark": "spark/tests",
    "operator/headrace_operator": "operator/tests",
}
"""Where the code of each lies, and where its tests."""

TOGETHER = {
    "nodeimage/headrace/tables": "what applies commands is tested with the commands of the catalog",
}
"""Packages whose tests are named after what is tested, not after modules, and why."""

WITHOUT_LOGIC = {
    "nodeimage/headrace/base/machine.py": "reads one file",
    "nodeimage/headrace/catalog/command.py": "the base of commands",
    "nodeimage/headrace/catalog/policy.py": "plain data",
    "nodeimage/headrace/catalog/queries/pages.py": "sizes",
    "nodeimage/headrace/catalog/rows.py": "plain data",
    "nodeimage/headrace/cli/admin.py": "one call",
    "nodeimage/headrace/container/environment.py": "protocols",
    "nodeimage/headrace/container/listeners.py": "protocols",
    "nodeimage/headrace/container/replica_events.py": "a protocol",
    "nodeimage/headrace/control/changes.py": "plain data",
    "nodeimage/headrace/control/container_states.py": "constants",
    "nodeimage/headrace/coordination/limits.py": "settings",
    "nodeimage/headrace/coordination/messages.py": "plain data",
    "nodeimage/headrace/coordination/shared.py": "plain data",
    "nodeimage/headrace/kafka/api.py": "plain data",
    "nodeimage/headrace/kafka/broker_config_table.py": "a table; kafka/test_node_configs.py looks names up in it",
    "nodeimage/headrace/kafka/counters.py": "plain data",
    "nodeimage/headrace/kafka/headrace_admin.py": "hands calls on to admin/admin_api.py",
    "nodeimage/headrace/kafka/limits.py": "constants",
    "nodeimage/headrace/kafka/session.py": "protocols",
    "nodeimage/headrace/kafka_client/errors.py": "errors",
    "nodeimage/headrace/links/pull/effects.py": "plain data",
    "nodeimage/headrace/links/pull/limits.py": "settings",
    "nodeimage/headrace/metrics/log_times.py": "two histograms",
    "nodeimage/headrace/metrics/readings.py": "plain data",
    "nodeimage/headrace/links/source/source.py": "a protocol and its answers",
    "nodeimage/headrace/node/__main__.py": "starts the process",
    "nodeimage/headrace/node/changes.py": "an event that is set",
    "nodeimage/headrace/partitions/admin_params.py": "types",
    "nodeimage/headrace/partitions/caller.py": "a protocol",
    "nodeimage/headrace/partitions/sequence_gap.py": "an error",
    "nodeimage/headrace/peer/reports.py": "plain data",
    "nodeimage/headrace/security/sasl/outcome.py": "plain data and a protocol",
    "nodeimage/headrace/store/kubernetes/pod_ports.py": "constants",
    "nodeimage/headrace/store/protocol.py": "a protocol; store/test_contract.py holds every store to it",
    "spark/headrace_spark/__init__.py": "registers the source with Spark",
    "spark/headrace_spark/demo/quiet.py": "a logger",
}
"""Modules of constants, types, plain data and protocols, and what they are."""
MAX_DECISIONS = 2
"""Branches and loops that such a module may have."""

REACHED = {
    "nodeimage/headrace/admin/cluster.py": ("cli/test_against_cluster.py", "admin/test_cluster_rules.py"),
    "nodeimage/headrace/admin/containers.py": ("cli/test_against_cluster.py",),
    "nodeimage/headrace/admin/nodes.py": ("cli/test_against_cluster.py",),
    "nodeimage/headrace/admin/stream_metrics.py": ("admin/test_streams.py", "admin/test_metrics.py"),
    "nodeimage/headrace/admin/volumes.py": ("cli/test_against_cluster.py",),
    "nodeimage/headrace/catalog/absence.py": ("catalog/test_damage.py", "catalog/test_query_plans.py"),
    "nodeimage/headrace/catalog/counters.py": ("catalog/test_tables.py",),
    "nodeimage/headrace/catalog/feature_level.py": ("catalog/test_apply_model.py", "catalog/test_damage.py"),
    "nodeimage/headrace/catalog/link_config.py": ("links/topics/test_topic_plan.py", "links/pull/test_pullers.py"),
    "nodeimage/headrace/catalog/queries/access.py": ("catalog/test_access.py", "catalog/test_damage.py"),
    "nodeimage/headrace/catalog/queries/chains.py": ("catalog/test_reader.py", "catalog/test_damage.py"),
    "nodeimage/headrace/catalog/queries/groups.py": ("catalog/test_groups.py", "catalog/test_damage.py"),
    "nodeimage/headrace/catalog/queries/homes.py": ("catalog/test_homes.py", "catalog/test_damage.py"),
    "nodeimage/headrace/catalog/queries/links.py": ("catalog/test_links.py", "catalog/test_damage.py"),
    "nodeimage/headrace/catalog/queries/proofs.py": ("catalog/test_damage.py", "catalog/test_query_plans.py"),
    "nodeimage/headrace/catalog/queries/streams.py": ("catalog/test_reader.py", "catalog/test_damage.py"),
    "nodeimage/headrace/catalog/queries/topics.py": ("catalog/test_reader.py", "catalog/test_damage.py"),
    "nodeimage/headrace/catalog/queries/users.py": ("catalog/test_users.py", "catalog/test_damage.py"),
    "nodeimage/headrace/catalog/retention.py": ("partitions/test_topic_configs.py", "catalog/test_topics.py"),
    "nodeimage/headrace/catalog/selects.py": ("catalog/test_reader.py", "catalog/test_damage.py"),
    "nodeimage/headrace/cli/containers.py": ("cli/test_against_cluster.py",),
    "nodeimage/headrace/cli/nodes.py": ("cli/test_against_cluster.py",),
    "nodeimage/headrace/kafka/common_refusals.py": ("kafka/test_groups.py",),
    "nodeimage/headrace/kafka/dispatch.py": ("kafka/test_connection.py", "kafka/test_bad_input.py"),
    "nodeimage/headrace/links/serving/topics.py": ("links/source/test_headrace_source.py",),
    "nodeimage/headrace/links/source/kafka_feed.py": ("links/source/test_kafka_keeps_back.py",),
    "nodeimage/headrace/links/topics/topic_apply.py": ("links/topics/test_topic_syncer.py",),
    "nodeimage/headrace/log/parent_death.py": ("log/test_regroup.py", "base/test_child_processes.py"),
    "nodeimage/headrace/node/admin_calls.py": ("admin/test_rights.py",),
    "nodeimage/headrace/node/client_apis.py": ("kafka/test_api_versions.py",),
    "nodeimage/headrace/node/environment.py": ("storage/test_commit.py", "storage/test_full_disk.py"),
    "nodeimage/headrace/node/links.py": ("links/test_links.py",),
    "nodeimage/headrace/node/parts.py": ("kafka/test_connection.py", "admin/test_streams.py"),
    "nodeimage/headrace/node/store_recovery.py": ("cluster/test_old_store.py", "local/test_nodes.py"),
    "nodeimage/headrace/partitions/batch_comparison.py": ("clients/test_idempotence.py",),
    "nodeimage/headrace/partitions/peer_apis.py": ("partitions/reads/test_remote_reads.py",),
    "nodeimage/headrace/security/sasl/jose_text.py": ("security/sasl/test_jws.py", "security/sasl/test_jwt.py"),
    "nodeimage/headrace/security/sasl/jwk.py": ("security/sasl/test_jwks.py", "security/sasl/test_jws.py"),
    "nodeimage/headrace/security/sasl/mechanisms.py": ("security/sasl/test_exchange.py",),
    "nodeimage/headrace/security/scram_common.py": ("security/test_scram.py", "security/sasl/test_scram_server.py"),
    "spark/headrace_spark/demo/__main__.py": ("demo/test_demo.py",),
    "spark/headrace_spark/demo/parts.py": ("demo/test_demo.py",),
    "spark/headrace_spark/demo/press.py": ("demo/test_demo.py",),
}
"""Modules that only other tests reach, of whole nodes, clusters and processes, with the names of these. It is to become
shorter."""


def modules() -> Iterator[Path]:
    """All that are to have tests of their own, but for packages whose tests are named otherwise; from the root."""
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*.py")):
            found = path.relative_to(ROOT)
            if path.name == "__init__.py" and not any(map(_is_definition, parsed(found).body)):
                continue
            if not any(found.is_relative_to(package) for package in TOGETHER):
                yield found


@cache
def parsed(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text())


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def where_tests_lie(module: Path) -> Path:
    """Where the tests of a module lie; those of a package's `__init__` are named after the package."""
    tree = next(tree for tree in TREES if module.is_relative_to(tree))
    inside = module.relative_to(tree)
    if inside.name == "__init__.py":
        return Path(TREES[tree], inside.parent.parent, f"test_{module.parent.name}.py")
    return Path(TREES[tree], inside.parent, f"test_{inside.stem.strip('_')}.py")


def decisions(tree: ast.AST) -> int:
    """How many branches and loops there are."""
    kinds = ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.Try | ast.match_case | ast.comprehension
    return sum(isinstance(node, kinds) for node in ast.walk(tree))


def test_where_tests_lie_follows_from_the_module() -> None:
    assert where_tests_lie(Path("nodeimage/headrace/log/table.py")) == Path("nodeimage/tests/log/test_table.py")
    assert where_tests_lie(Path("operator/headrace_operator/main.py")) == Path("operator/tests/test_main.py")
    assert where_tests_lie(Path("spark/headrace_spark/job/__main__.py")) == Path("spark/tests/job/test_main.py")
    assert where_tests_lie(Path("spark/headrace_spark/job/__init__.py")) == Path("spark/tests/test_job.py")


def test_each_module_has_its_test_module() -> None:
    excepted = {*WITHOUT_LOGIC, *REACHED}
    missing = [
        f"{module}: {where_tests_lie(module)}"
        for module in modules()
        if str(module) not in excepted and not (ROOT / where_tests_lie(module)).exists()
    ]
    assert not missing, "modules without their test module:\n" + "\n".join(missing)


def test_what_is_excepted_is_there_and_has_no_test_module() -> None:
    known = {str(module): module for module in modules()}
    for name in (*WITHOUT_LOGIC, *REACHED):
        assert name in known, f"{name} is there no more"
        assert not (ROOT / where_tests_lie(known[name])).exists(), f"{name} has tests of its own: it needs no exception"
    assert not WITHOUT_LOGIC.keys() & REACHED.keys()
    assert all((ROOT / package).is_dir() for package in TOGETHER)


def test_the_tests_that_reach_a_module_are_there() -> None:
    for name, tests in REACHED.items():
        folder = next(TREES[tree] for tree in TREES if name.startswith(f"{tree}/"))
        assert tests, name
        assert [each for each in tests if not (ROOT / folder / each).exists()] == [], name


def test_a_module_without_logic_decides_next_to_nothing() -> None:
    for name in WITHOUT_LOGIC:
        assert decisions(parsed(Path(name))) <= MAX_DECISIONS, f"{name} has logic: it needs tests of its own"
