"""A planted fault brings the profile and mode under which it shows, unless the user names others."""

from __future__ import annotations

from fiafuzz.cli.fuzz import where_faults_show


def test_faults_bring_profile_and_mode() -> None:
    assert where_faults_show(("cpu",), (), "all", mode_given=False) == (("950-v5",), "all")
    assert where_faults_show(("faulty:mx-pairs-swapped",), (), "all", mode_given=False) == (("950-v5-2026.08",), "all")
    assert where_faults_show(("faulty:alibi-sign",), (), "all", mode_given=False)[1] == "disputed"


def test_what_the_user_gives_holds() -> None:
    assert where_faults_show(("faulty:mx-pairs-swapped",), ("a2-v3",), "all", mode_given=False)[0] == ("a2-v3",)
    assert where_faults_show(("faulty:alibi-sign",), (), "valid", mode_given=True)[1] == "valid"
