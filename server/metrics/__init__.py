"""What Prometheus is told of this process: GET /metrics.

Only reads what others have counted, when it is asked. Never counts anything itself.
"""
