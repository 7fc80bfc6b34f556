"""What holds for all tests: no property of ours is a matter of speed."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

# As in the profile that hypothesis has for CI: an example that a busy machine runs or draws slowly is no failure.
settings.register_profile(
    "default",
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


def pytest_collection_finish() -> None:
    """What is imported stays, and is most of what there is: no export need search it for garbage."""
    gc.collect()
    gc.freeze()
