"""The probe of a model that was just changed, while nobody else can see it: passed, or undone."""

from __future__ import annotations

from hotdelta.chain import Manifest, Node
from hotdelta.errors import SanityError
from loader.checks.quality import QualityProbe
from loader.files.fed_update import FedUpdate
from loader.lag import Stopwatch
from loader.model.live_model import LiveModel


def require_quality(
    quality: QualityProbe,
    model: LiveModel,
    manifest: Manifest,
    before: Node | None,
    preimage: FedUpdate,
    watch: Stopwatch,
) -> None:
    """Raises SanityError when the model does not pass; then it holds `before` again.

    Raises ApplyError when that could not be undone: then it holds no state that may be served.
    """
    start = watch.clock()
    try:
        quality.require(model, manifest, before)
    except SanityError:
        model.stage_rows(preimage)
        model.apply()
        raise
    finally:
        watch.add("probe", watch.clock() - start)
