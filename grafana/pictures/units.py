"""Numbers as Grafana writes them, for the units that the dashboards use."""

import math

# A unit's steps: the lowest value, the size of one, and the suffix of the number.
Steps = list[tuple[float, float, str]]

SHORT: Steps = [(0, 1, ""), (1e3, 1e3, " K"), (1e6, 1e6, " Mil"), (1e9, 1e9, " Bil")]
UNITS: dict[str, Steps] = {
    "short": SHORT,
    "ops": [(since, worth, f"{said} ops/s") for since, worth, said in SHORT],
    "reqps": [(since, worth, f"{said} req/s") for since, worth, said in SHORT],
    "percentunit": [(0, 0.01, "%")],
    "s": [(0, 1e-6, " µs"), (1e-3, 1e-3, " ms"), (1, 1, " s"), (60, 60, " min"), (3600, 3600, " h"), (86400, 86400, " d")],
    "bytes": [(0, 1, " B"), (2**10, 2**10, " KiB"), (2**20, 2**20, " MiB"), (2**30, 2**30, " GiB")],
    "Bps": [(0, 1, " B/s"), (1e3, 1e3, " kB/s"), (1e6, 1e6, " MB/s"), (1e9, 1e9, " GB/s")],
}
# Widths between two lines of an axis that are whole minutes or hours.
OF_CLOCKS = [60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0]


def write(value: float, unit: str, decimals: int | None = None) -> str:
    """A number with its unit: with this many decimals, or to three digits."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "–"
    steps = UNITS[unit]
    _, worth, said = next((step for step in reversed(steps) if abs(value) >= step[0]), steps[0])
    if value == 0 and unit == "s":
        worth, said = 1, " s"
    number = value / worth
    if decimals is None:
        decimals = 0 if abs(number) >= 100 else 1 if abs(number) >= 10 else 2
        text = f"{number:.{decimals}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text) + said
    return f"{number:.{decimals}f}{said}"


def ticks(low: float, high: float, unit: str, count: int) -> list[float]:
    """Where an axis has its lines: round numbers of the unit, the last of them at or above the highest value."""
    if high <= low:
        high = low + 1
    wanted = (high - low) / count
    if unit == "s" and wanted > 30:
        width = next((width for width in OF_CLOCKS if width >= wanted), wanted)
    else:
        base = 1.0
        if unit == "bytes":
            base = float(max(step[0] for step in UNITS[unit] if step[0] <= max(wanted, 1))) or 1.0
        power = base * 10 ** math.floor(math.log10(wanted / base))
        width = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= wanted * 0.999)
    first, last = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
    return [width * index for index in range(first, last + 1)]
