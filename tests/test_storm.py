"""What the storm draws is spread over all stages and repeats; what it looks for it finds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.storm import leftovers
from tests.storm.schedule import KINDS, MODES, MOMENTS, PAIRS, TEXTS, draw

BUILT = {
    PAIRS: [f"{stage}/{stage}{number}" for stage in ("split", "pretrain", "train", "search") for number in range(4)],
    TEXTS: ["split/split0", "pretrain/other", "count/count0"],
}


def test_a_seed_repeats_its_storm_and_every_kind_of_stage_is_aimed_at_as_often() -> None:
    chains = draw(60, 7, BUILT, MODES[:1])

    assert chains == draw(60, 7, BUILT, MODES[:1])
    assert chains != draw(60, 8, BUILT, MODES[:1])
    aims = [aim for chain in chains for aim in chain.interruptions]
    assert Counter(aim.stage for aim in aims) == dict.fromkeys(("split", "pretrain", "train", "search", "count"), 12)
    assert {aim.kind for aim in aims} == set(KINDS)
    assert {aim.moment for aim in aims} == set(MOMENTS)
    for chain in chains:
        for recipe in (PAIRS, TEXTS):
            order = [BUILT[recipe].index(aim.reference) for aim in chain.of(recipe)]
            assert order == sorted(order)


def test_every_way_of_running_has_its_share() -> None:
    chains = draw(200, 1, BUILT)

    assert sum(len(chain.interruptions) for chain in chains) == 200
    assert {chain.mode.name for chain in chains} == {mode.name for mode in MODES}
    assert all(len(chain.interruptions) <= chain.mode.most for chain in chains)


def test_leftover_files_are_reported(tmp_path: Path) -> None:
    store = tmp_path
    artifact = store / "train" / "k1"
    (artifact / "logs").mkdir(parents=True)
    (artifact / "manifest.json").write_text(json.dumps({"files": {"a.bin": {}}, "logs": {"logs/metrics.jsonl": {}}}))
    (artifact / "a.bin").touch()
    (artifact / "logs" / "metrics.jsonl").touch()
    assert leftovers.files(store) == []

    (artifact / ".tmpXyz").touch()
    (artifact / "a.bin").unlink()
    (store / ".work" / "train-k2").mkdir(parents=True)
    (store / "ledger").mkdir()
    (store / "ledger" / ".part.1-2.tmp").touch()
    (store / "search" / "k3").mkdir(parents=True)

    assert leftovers.files(store) == [
        ".work/train-k2 is left", "search/k3 has no manifest", "train/k1/.tmpXyz is not listed",
        "train/k1/a.bin is missing", "ledger/.part.1-2.tmp is temporary", "train/k1/.tmpXyz is temporary",
    ]  # fmt: skip
