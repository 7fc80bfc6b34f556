"""What hotdelta costs, measured: each module is one table, run as `python -m benchmarks.<name>`."""
