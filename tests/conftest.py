"""Fixtures for every folder of tests."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import settings

from tests.standin_cann.build import Build, StandinUnavailable, build
from tests.standin_cann.environment import standin_environment


def pytest_configure(config: pytest.Config) -> None:
    # Hundreds of child processes import this tree; one that may not keep what it compiles spends a quarter of a second on compiling it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A deadline is one of the wall clock: on a busy machine it fails tests that find nothing.
    if config.getoption("hypothesis_profile", None) is None:
        settings.register_profile("fiafuzz-tests", deadline=None)
        settings.load_profile("fiafuzz-tests")


@pytest.fixture(scope="session")
def standin() -> Build:
    """The stand-in CANN. Without it the test is skipped with the reason, or fails where FIAFUZZ_REQUIRE_ALL=1."""
    try:
        return build()
    except StandinUnavailable as error:
        if os.environ.get("FIAFUZZ_REQUIRE_ALL") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
def standin_env(standin: Build) -> Callable[..., dict[str, str]]:
    """The whole environment of a child process on the stand-in; arguments as for ``standin_environment``."""

    def environment(**settings: object) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ASCEND_", "STANDIN_"))}
        cache = {"STANDIN_CACHE": os.environ["STANDIN_CACHE"]} if "STANDIN_CACHE" in os.environ else {}
        return {**kept, **cache, **standin_environment(standin, **settings)}  # type: ignore[arg-type]

    return environment
