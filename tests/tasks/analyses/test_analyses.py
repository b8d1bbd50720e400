"""What every analysis has: settings with its name, a stage, and a part of the report."""

import importlib
import json
import math
from pathlib import Path
from typing import Literal, get_args

import pytest

from storage import settings as base
from storage.tables import Analysis
from tasks.analyses import write
from tasks.stage import Stage
from tests.tasks.analyses.drawing import PAGE

FOLDER = PAGE.parents[1] / "analyses"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "__init__")


@pytest.mark.parametrize("name", NAMES)
def test_an_analysis_has_settings_a_stage_and_a_template(name: str) -> None:
    module = importlib.import_module(f"tasks.analyses.{name}")

    assert get_args(module.Settings.model_fields["analysis"].annotation) == (name,)
    assert issubclass(module.Settings, base.Settings)
    stage = getattr(module, name)
    assert isinstance(stage, Stage)
    assert stage.table is Analysis
    assert (PAGE / "analyses" / f"{name}.html.j2").is_file()


def test_every_template_belongs_to_an_analysis() -> None:
    assert sorted(file.name.split(".")[0] for file in (PAGE / "analyses").iterdir()) == NAMES


class Settings(base.Settings):
    analysis: Literal["some"]
    seed: int


def test_settings_and_results_are_written(tmp_path: Path) -> None:
    write(tmp_path, Settings(analysis="some", seed=3), {"text": "ü", "share": 0.5})

    results = json.loads((tmp_path / "analysis.json").read_text())
    assert results == {"analysis": "some", "seed": 3, "text": "ü", "share": 0.5}


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(tmp_path, Settings(analysis="some", seed=3), {"share": math.nan})
    assert not list(tmp_path.iterdir())
