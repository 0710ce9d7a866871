"""Alert rules for Prometheus and dashboards for Grafana, made from tables. PURE."""
