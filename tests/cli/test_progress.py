"""What a terminal shows while planners work."""

from __future__ import annotations

from rich.progress import Progress

from remat_cli.cli.output import _Progress


def test_the_line_shows_best_plan_and_bound_of_the_planner_that_works_now() -> None:
    shown = Progress(disable=True)
    progress = _Progress(shown)

    def line() -> str:
        return shown.tasks[0].description

    progress.phase("60%: starting")
    assert line() == "60%: starting"
    progress.standing(0.5, 0.25, "dtr")
    assert line() == "best 50.00 % by dtr · bound 25.00 % · gap 25.00 % · 60%: starting · Ctrl-C takes the best plan"
    progress.phase("60%: searching")
    assert line() == "best 50.00 % by dtr · bound 25.00 % · gap 25.00 % · 60%: searching · Ctrl-C takes the best plan"
    progress.begins()
    progress.phase("50%: starting")
    assert line() == "50%: starting"


def test_a_call_that_keeps_no_plan_does_not_say_so() -> None:
    shown = Progress(disable=True)
    progress = _Progress(shown, keeps_plans=False)
    progress.standing(0.5, 0.25, "dtr")
    assert "Ctrl-C" not in shown.tasks[0].description
