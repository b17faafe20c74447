from headrace.metrics.merging import merged


def text(node: int, *groups: str) -> str:
    lines = ["# HELP a_ready Whether it is ready.", "# TYPE a_ready gauge", f'a_ready{{node="{node}"}} 1']
    if groups:
        lines += ["# HELP a_lag How far.", "# TYPE a_lag gauge"]
    lines += [f'a_lag{{group="{group}",node="{node}"}} 1' for group in groups]
    return "".join(f"{line}\n" for line in lines)


def test_several_nodes_metrics_stand_together_under_one_head() -> None:
    both = merged([text(3), text(4, "g")]).splitlines()
    assert both == [
        "# HELP a_ready Whether it is ready.",
        "# TYPE a_ready gauge",
        'a_ready{node="3"} 1',
        'a_ready{node="4"} 1',
        "# HELP a_lag How far.",
        "# TYPE a_lag gauge",
        'a_lag{group="g",node="4"} 1',
    ]


def test_a_hostile_value_is_no_head_and_ends_no_line() -> None:
    value = "# HELP a_ready x\u2028# TYPE a_lag y\x0b\r"
    assert merged([text(3, value), text(4)]).count(value) == 1
    assert merged([text(3, value)]) == text(3, value)
