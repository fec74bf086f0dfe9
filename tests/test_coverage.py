"""docs/coverage.md is up to date: every public name is in it (quick), and all that it says (slow)."""

import re

import pytest

from tests import coverage

PAGE = coverage.PAGE.read_text()


def test_every_public_name_is_in_the_table() -> None:
    listed = set(re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE))
    assert listed == set(coverage.public()), "run `make coverage-table`"


def test_what_is_missing_is_listed_with_its_reason() -> None:
    for why, names in coverage.missing().items():
        assert f"| {why} | {', '.join(f'`{n}`' for n in names)} |" in PAGE, "run `make coverage-table`"


def test_fewer_than_ten_names_of_the_database_are_excluded_each_with_a_reason() -> None:
    assert "not written yet" not in coverage.missing()
    assert sum(map(len, coverage.missing().values())) < 10


def test_every_public_function_is_documented() -> None:
    assert not coverage.documented()


@pytest.mark.slow
@pytest.mark.usefixtures("on_numpy")
@pytest.mark.filterwarnings("ignore")
def test_the_page_says_what_is_found() -> None:
    assert coverage.text() == PAGE, "run `make coverage-table`"
