"""Curves of what a training logged."""

from pathlib import Path

from tasks.report.page.training_curves import averaged, losses, observed


def test_what_a_training_tells_beside_its_losses(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "metrics.jsonl"
    log.parent.mkdir()
    log.write_text(
        '{"step": 1, "contrast_late": 2.0, "weight_late": 0.4, "wins_late": 0.3, "ties": 0.1, "entropy": 1.0}\n'
    )

    assert losses(tmp_path) == {"contrast_late": [(1.0, 2.0)]}
    assert observed(tmp_path) == {
        "mean weight of each expert": {"late": [(1.0, 0.4)]},
        "share of queries that each expert wins": {"late": [(1.0, 0.3)]},
        "competition": {"ties": [(1.0, 0.1)], "entropy": [(1.0, 1.0)]},
    }


def test_the_rate_of_a_training_is_no_loss(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "metrics.jsonl"
    log.parent.mkdir()
    log.write_text('{"step": 10, "mlm": 3.5, "context": 5.0, "learning_rate": 0.1, "rows_per_second": 90.0, '
                   '"loss_scale": 65536.0, "skipped_steps": 2}\n')  # fmt: skip

    assert losses(tmp_path) == {"mlm": [(10.0, 3.5)], "context": [(10.0, 5.0)]}


def test_long_curves_are_averaged() -> None:
    assert averaged([(step, float(step)) for step in range(1, 321)])[0] == (1.5, 1.5)
    assert averaged([]) == []
