"""What is read from the log of a training."""

from tasks.training.metrics_log import seconds_in_steps


def test_seconds_in_steps_are_those_of_all_steps_between_logged_lines() -> None:
    log = '{"step": 0, "probe_MRR@10": 0.5}\n{"step": 3, "rows_per_second": 24.0}\n{"step": 5, "probe_MRR@10": 0.6}\n'
    log += '{"step": 7, "rows_per_second": 16.0}\n'

    assert seconds_in_steps(log, 8) == 3 * 8 / 24 + 4 * 8 / 16
