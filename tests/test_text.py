import pytest

from reuseloader.text import amount, duration, number, plural, share, table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1e-8, "< 0.001 ms"),
        (2.1e-5, "0.0210 ms"),
        (0.0201, "20.1 ms"),
        (0.09996, "100 ms"),
        (0.9999, "1,000 ms"),
        (1, "1.00 s"),
        (35.95, "36.0 s"),
        (101.1, "101 s"),
        (650, "10.8 min"),
        (7200, "2.00 h"),
        (86400 * 5, "120 h"),
    ],
)
def test_durations(seconds, text):
    """Units fit, three digits count, and there are no powers of ten."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (80, "80 B"),
        (999.4, "999 B"),
        (999.6, "1.00 KB"),
        (1000, "1.00 KB"),
        (99_960, "100 KB"),
        (150_080, "150 KB"),
        (999_499, "999 KB"),
        (999_500, "1.00 MB"),
        (1.5e6, "1.50 MB"),
        (1_234_567_890, "1.23 GB"),
        (3e12, "3.00 TB"),
        (1e16, "10,000 TB"),
    ],
)
def test_amounts(size, text):
    """Bytes have three digits and the largest unit of which there is one."""
    assert amount(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (1e9, "1,000,000,000"),
        (2.5, "2.5"),
        (1428.57, "1,429"),
        (2**63 - 1, "9,223,372,036,854,775,807"),
    ],
)
def test_numbers(value, text):
    """Whole numbers are exact; of others no more is said than one cares for."""
    assert number(value) == text


def test_counts_and_shares():
    """A noun is in the plural unless there is one; of nothing the share is none."""
    assert [plural(count, "build") for count in (0, 1, 2000)] == [
        "0 builds",
        "1 build",
        "2,000 builds",
    ]
    assert (share(1, 8), share(0, 0)) == ("12.5 %", "0.0 %")


def test_tables():
    """Each column is as wide as its widest cell, and no line ends in blanks."""
    rows = [("name", "value", ""), ("a", "1,000", "a remark")]
    assert table(rows, "<><") == ["name  value", "a     1,000  a remark"]
    assert table(rows, ">><", "  ") == ["  name  value", "     a  1,000  a remark"]
    assert table([], "<") == []
