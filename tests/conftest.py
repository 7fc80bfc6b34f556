"""What holds for all tests: no property of ours is a matter of speed."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# As in the profile that hypothesis has for CI: an example that a busy machine runs or draws slowly is no failure.
settings.register_profile(
    "default",
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
