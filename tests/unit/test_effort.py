"""How much of a run goes into looking at failures: in seconds where time bounds it, in runs where it does not."""

from __future__ import annotations

from time import monotonic

from fiafuzz.campaign.effort import FIRST_RUNS, Effort


def test_without_a_bound_of_time_runs_count_and_no_clock() -> None:
    effort = Effort(timed=False, started=monotonic() - 1e9)
    with effort.of("proof"):
        effort.runs += 10
    with effort.of("shrink"):
        effort.runs += 90
    effort.position = 400
    assert effort.share("proof") == 10 / (FIRST_RUNS + 400 + 100)
    assert effort.share("shrink") == 90 / (FIRST_RUNS + 400 + 100)
    assert effort.share("other") == 0


def test_with_a_bound_of_time_seconds_count() -> None:
    effort = Effort(timed=True, started=monotonic() - 1000.0)
    with effort.of("shrink"):
        effort.runs += 10_000
    assert 0 <= effort.share("shrink") < 0.5, "runs do not count"
    effort.seconds_of["shrink"] = 500.0
    assert 0.2 < effort.share("shrink") <= 0.5


def test_what_is_done_inside_counts_even_when_it_ends_badly() -> None:
    effort = Effort(timed=False)
    try:
        with effort.of("proof"):
            effort.runs += 3
            raise KeyError
    except KeyError:
        pass
    assert effort.runs_of["proof"] == 3
