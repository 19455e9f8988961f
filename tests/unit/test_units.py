"""Units are exact and refuse what they do not know."""

from decimal import Decimal

import pytest
from dsec.api import units
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32G", 32_000_000_000),
        ("32Gi", 34_359_738_368),
        ("32GB", 32_000_000_000),
        ("32GiB", 34_359_738_368),
        ("4Gi", 4_294_967_296),
        ("4G", 4_000_000_000),
        ("512Mi", 536_870_912),
        ("1.5Gi", 1_610_612_736),
        ("0.5k", 500),
        ("200 G", 200_000_000_000),
        ("7B", 7),
        ("1Ti", 1_099_511_627_776),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    """Decimal and binary units stay distinct."""
    assert units.size(text) == expected


@pytest.mark.parametrize(
    "value", ["", "G", "-1G", "1e3", "4", 4, "0.3k3", "4gi", "4Gb", "1,5G", True, None, []]
)
def test_bad_sizes(value: object) -> None:
    """A number without unit and a wrong case are refused in words."""
    with pytest.raises(units.UnitError, match="must be"):
        units.size(value)


def test_bare_sizes_count_in_the_unit_of_their_key() -> None:
    """`mem_gb: 128` is 128 decimal gigabytes, and a fraction of one is exact."""
    assert units.size(128, bare=units.GB) == 128_000_000_000
    assert units.size(Decimal("12.5"), bare=units.GB) == 12_500_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2, 2000), ("2", 2000), ("500m", 500), ("0.5", 500), (Decimal("0.1"), 100), ("1.001", 1001)],
)
def test_cpu(value: object, expected: int) -> None:
    """Cores and thousandths."""
    assert units.cpu_milli(value) == expected


@pytest.mark.parametrize("value", ["0.0001", "two", "2c", "1e3", "-1", False, None])
def test_bad_cpu(value: object) -> None:
    """Less than a thousandth is refused rather than rounded."""
    with pytest.raises(units.UnitError):
        units.cpu_milli(value)


@pytest.mark.parametrize(
    ("value", "bare", "expected"),
    [
        (600, 1, 600),
        (300, 1, 300),
        (15, 60, 900),
        ("12h", 1, 43_200),
        ("1h30m", 1, 5400),
        ("15min", 1, 900),
        ("30d", 1, 2_592_000),
        ("90s", 1, 90),
        ("45", 1, 45),
    ],
)
def test_durations(value: object, bare: int, expected: int) -> None:
    """Seconds, minutes and text normalise to seconds (API-12)."""
    assert units.seconds(value, bare=bare) == expected


@pytest.mark.parametrize(
    "value", ["12x", "h", "-5", -5, "30m1h", "1h1h", "1.5h", True, None, "5 s"]
)
def test_bad_durations(value: object) -> None:
    """Units fall, and each comes once."""
    with pytest.raises(units.UnitError):
        units.seconds(value)


def test_shares() -> None:
    """CONF-08: 800 absolute CPU shares are 64 cores; relative ones depend on the machine."""
    assert units.cpu_milli_of_shares(800) == 64_000
    assert units.cpu_milli_of_shares(800, machine_cores=80) == 64_000
    assert units.cpu_milli_of_shares(800, machine_cores=40) == 32_000
    assert units.gpu_bytes_of_shares(800) == 80_000_000_000
    assert units.gpu_bytes_of_shares(400) == 40_000_000_000


@pytest.mark.parametrize(
    ("value", "expected"), [(500, "500"), ("0.1", "0.1"), (Decimal("12.50"), "12.50")]
)
def test_money(value: object, expected: str) -> None:
    """Amounts keep their digits."""
    assert units.money(value) == expected


@pytest.mark.parametrize("value", [-1, "1.23456", "NaN", "1e500", "five", True, 0.1])
def test_bad_money(value: object) -> None:
    """No float, no sign, no more than four decimals."""
    with pytest.raises(units.UnitError):
        units.money(value)


@given(st.integers(min_value=1, max_value=1 << 60))
def test_size_text_is_exact(count: int) -> None:
    """What people are shown parses back to the same bytes."""
    text = units.size_text(count)
    assert units.size(text.removesuffix(" bytes"), bare=1) == count


@given(st.integers(min_value=1, max_value=10_000_000))
def test_cpu_text_is_exact(milli: int) -> None:
    """What people are shown parses back to the same thousandths."""
    assert units.cpu_milli(units.cpu_text(milli)) == milli
