"""Formats values in Grafana's units, and computes the ticks of an axis."""

import math

SMALL = ((1e-9, "n"), (1e-6, "µ"), (1e-3, "m"))
LARGE = ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K"))
BINARY = ((2**40, " TiB"), (2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B"))
SECONDS = ((86400, " d"), (3600, " h"), (60, " min"), (1, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns"))
# Suffixes of units that do not scale the number.
ENDS = {"ops": " ops/s", "reqps": " req/s", "celsius": " °C", "watt": " W", "percent": "%"}


def shown(value, unit, decimals=None):
    """A value with its unit, as Grafana shows it."""
    if unit == "percentunit":
        return plain(100 * value, decimals) + "%"
    if unit == "s":
        return scaled(value, SECONDS, decimals)
    if unit in ("bytes", "mbytes"):
        return scaled(value * (2**20 if unit == "mbytes" else 1), BINARY, decimals)
    if unit == "sci":
        return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e+") if value else "0"
    if unit == "short" and abs(value) >= 1e3:
        return scaled(value, LARGE, decimals)
    if unit in ("none", "short", *ENDS):
        return plain(value, decimals) + ENDS.get(unit, "")
    raise ValueError(f"unit {unit}")


def scaled(value, sizes, decimals):
    """The value in the largest unit that it reaches, or in the smallest unit."""
    if value == 0:
        return "0" + dict((size, name) for size, name in sizes).get(1, "")
    size, name = next(((size, name) for size, name in sizes if abs(value) >= size), sizes[-1])
    return plain(value / size, decimals) + name


def plain(value, decimals=None):
    """A number with three significant digits. Integers keep all digits."""
    if decimals is None:
        if value == 0 or abs(value) >= 100 or float(value).is_integer():
            decimals = 0
        else:
            decimals = min(max(2 - math.floor(math.log10(abs(value))), 0), 6)
        words = f"{value:.{decimals}f}"
        words = words.rstrip("0").rstrip(".") if "." in words else words
    else:
        words = f"{value:.{decimals}f}"
    return "0" if words in ("-0", "") else words


def ticks(least, most, unit, number=4):
    """Round values that enclose `least` and `most`. The first and the last are the ends of the
    axis."""
    base = 2 if unit in ("bytes", "mbytes") else 10
    span = max(most - least, 1e-12)
    step = base ** math.floor(math.log(span / number, base))
    if unit == "none":
        # The unit "none" is for counts.
        step = max(step, 1)
    if unit == "s" and span > 120:
        step = 60
    factors = (1, 2, 4, 8) if base == 2 else (1, 2, 2.5, 5, 10)
    while span / step > number + 0.5:
        wider = [step * factor for factor in factors if span / (step * factor) <= number + 0.5]
        step = wider[0] if wider else step * factors[-1]
    first = math.floor(least / step + 1e-9)
    last = math.ceil(most / step - 1e-9)
    return [one * step for one in range(first, max(last, first + 1) + 1)]


def powers(least, most):
    """At most six powers of ten that enclose positive values. Within two decades also 2 and 5 times
    the powers."""
    first, last = math.floor(math.log10(least) + 1e-9), math.ceil(math.log10(most) - 1e-9)
    last = max(last, first + 1)
    if last - first <= 2:
        return [factor * 10.0**power for power in range(first, last) for factor in (1, 2, 5)] + [10.0**last]
    every = math.ceil((last - first) / 5)
    return [10.0**power for power in range(first, last + every, every)]
