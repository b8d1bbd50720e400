"""The line below the table of `pretrieve plan` with the sum of the hours."""

from flows.plan.plan import total_hours


def row(state: str, hours: str) -> dict[str, str]:
    return {"state": state, "hours": hours}


def test_the_hours_of_stages_to_build_are_added_up() -> None:
    rows = [row("to build", "~513,914.2"), row("to build", "1.5"), row("to build", ""), row("cached", "")]

    assert total_hours(rows) == "in total: ~513,916 hours, for 2 of 3 stages to build"


def test_small_hours_keep_their_digits() -> None:
    assert total_hours([row("to build", "~0.076"), row("to build", "~0.07")]) == (
        "in total: ~0.146 hours, for 2 of 2 stages to build"
    )


def test_without_an_estimate_there_is_no_total() -> None:
    assert total_hours([row("to build", ""), row("cached", "")]) == ""
