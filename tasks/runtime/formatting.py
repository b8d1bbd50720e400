"""Seconds, bytes, numbers and energy in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return seconds in words: `4.2 s`, `3 min 20 s`, `5 h 12 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def in_units(num_bytes: float) -> str:
    """Return a size with its unit: `512 B`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def short(number: float) -> str:
    """Return a number with three digits, or as an integer: `1,240`, `12.3`, `0.0123`."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def watt_hours(joules: float) -> str:
    """Return energy in watt-hours: `12.3 Wh`, `1.2 kWh`."""
    hours = joules / 3600
    return f"{hours:.3g} Wh" if hours < 1000 else f"{hours / 1000:,.1f} kWh"
