"""What is deployed beside hotdelta: the rules and the dashboard of Prometheus and Grafana."""
