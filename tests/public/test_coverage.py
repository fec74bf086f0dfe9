"""docs/coverage.md is up to date: every public name is in it (quick), and all that it says (slow)."""

import re

import pytest

from tests.public import coverage, torch_namespaces

PAGE = coverage.PAGE.read_text()


def test_every_public_name_is_in_the_table() -> None:
    listed = set(re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE))
    assert listed == set(coverage.public()), "run `make coverage-table`"


def test_what_is_missing_is_listed_with_its_reason() -> None:
    for why, names in coverage.missing().items():
        assert f"| {why} | {', '.join(f'`{n}`' for n in names)} |" in PAGE, "run `make coverage-table`"


def test_names_of_namespaces_that_are_missing_are_listed_with_their_reason() -> None:
    absent = torch_namespaces.absent()
    assert "not written yet" not in absent, absent["not written yet"]
    assert set(absent) == {why for _, _, why in torch_namespaces.REASONS}, "a reason without a name"
    assert "\n".join(torch_namespaces.text()) in PAGE, "run `make coverage-table`"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_namespaces_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for space, names in torch_namespaces.NAMESPACES.items():
        assert torch_namespaces.of_torch(torch, space) == names, space


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
