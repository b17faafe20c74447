"""The chart's alerts under Prometheus's own rule engine: `promtool`, as .ci/tools gets it."""
