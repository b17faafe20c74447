"""The chart's alerts in Prometheus's own rule engine: `promtool`, downloaded by .ci/tools."""
