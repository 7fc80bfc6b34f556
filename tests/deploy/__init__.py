"""What is deployed: containers, and beside them the rules and the dashboard of Prometheus and Grafana."""
