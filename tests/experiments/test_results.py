"""What the committed results say of the library itself."""

import json
from pathlib import Path

import pytest

# Single steps, scores only, and peers.
WITHOUT_DETAILS = ("bars", "complexity", "corrections", "forecasts", "oracles", "sampling", "tables")
RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.jsonl"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_no_fit_needed_more_jitter_than_configured(path: Path) -> None:
    """Promise 12, on every committed fit of a GP model."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    details = [record.get("details", record) for record in records]
    climbs = [found["jitter_climbs"] for found in details if "jitter_climbs" in found]
    assert climbs or path.stem in WITHOUT_DETAILS
    assert not any(climbs)
