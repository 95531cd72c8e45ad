"""TernGrad's throughput figure for this machine: tables, a picture, and whether its conclusions hold."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from speech3.engine import LEVEL, Conclusion, Point
from speech3.io.atomic import write_json
from speech3.scoring.tables import grid
from speech3.training.throughput import BYTES_PER_GIGABIT, Network, Throughput

_SHOWN = 3  # most exceptions to each conclusion that are printed


def throughput_text(found: Throughput) -> str:
    """The measurements, the predicted frames per second, and the conclusions, as text."""
    measured = [["network", "parameters", "fully connected %", "frames", "minibatch ms", "float32 MB", "coding ms",
                 "up MB", "down MB"]]  # fmt: skip
    measured += [_measured(network) for network in found.networks]
    rates = [["network", "Gbit/s", "gradients", *map(str, found.workers)]]
    for row in _rows(found):
        where = [row[0].network, f"{row[0].bandwidth / BYTES_PER_GIGABIT:g}"]
        rates.append([*where, "float32", *(_rate(point.float32) for point in row)])
        rates.append([*where, "ternary", *(_rate(point.ternary) for point in row)])
        rates.append([*where, "gain", *(f"{point.gain:.2f}" for point in row)])
    coded = [count for count in found.workers if count > 1]
    ends = f"; two numbers are for {coded[0]} .. {coded[-1]} workers" if len(coded) > 1 else ""
    return (
        f"measured on this machine ({found.device}), for one worker's step{ends}:\n{grid(measured, 1)}\n\n"
        f"predicted frames per second by number of workers; gain: ternary over float32\n{grid(rates, 3)}\n\n"
        + "\n".join(_conclusion(each) for each in found.conclusions)
    )


def _measured(network: Network) -> list[str]:
    costs, coded = network.costs, list(network.costs.ternary.values())
    ends = [coded[0], coded[-1]] if len(coded) > 1 else coded
    return [
        network.name, f"{network.parameters:,}", f"{100 * network.connected:.1f}", f"{costs.frames:.0f}",
        f"{1e3 * costs.compute_s:.2f}", f"{costs.float32.up / 1e6:.3f}",
        " .. ".join(f"{1e3 * sent.coding_s:.2f}" for sent in ends) or "-",
        f"{coded[0].up / 1e6:.3f}" if coded else "-",
        " .. ".join(f"{sent.down / 1e6:.3f}" for sent in ends) or "-",
    ]  # fmt: skip


def _rows(found: Throughput) -> list[Sequence[Point]]:
    count = len(found.workers)
    return [found.points[start : start + count] for start in range(0, len(found.points), count)]


def _rate(frames: float) -> str:
    return f"{frames:,.0f}"


def _conclusion(found: Conclusion) -> str:
    alike = f"{found.level} level, within {100 * LEVEL:g} %"
    if not found.steps:
        return f"TernGrad: {found.claim}: nothing to compare{f' ({alike})' if found.level else ''}"
    held = found.steps - len(found.against)
    verdict = "holds" if not found.against else "does not hold" if not held else "does not always hold"
    beside = f"; {alike}" if found.level else ""
    text = f"TernGrad: {found.claim}: {verdict} ({held} of {found.steps} steps{beside})"
    for before, after in found.against[:_SHOWN]:
        text += f"\n  not: {_place(before)}: gain {before.gain:.3f}; {_place(after)}: {after.gain:.3f}"
    more = len(found.against) - _SHOWN
    return text + (f"\n  and {more} more, in throughput.json" if more > 0 else "")


def _place(point: Point) -> str:
    return f"{point.network}, {point.bandwidth / BYTES_PER_GIGABIT:g} Gbit/s, {point.workers} workers"


def write_throughput(out: Path, found: Throughput) -> list[Path]:
    """Write ``throughput.json`` (everything, with the gains) and ``throughput.png`` (a panel for each network)."""
    from speech3.reports.engine_figures import draw_throughput
    from speech3.reports.figures import write_png

    values = asdict(found)
    values["level_within"] = LEVEL
    values["points"] = [asdict(point) | {"gain": point.gain} for point in found.points]
    values["conclusions"] = [
        {"claim": each.claim, "steps": each.steps, "level": each.level,
         "against": [[asdict(point) | {"gain": point.gain} for point in pair] for pair in each.against]}
        for each in found.conclusions
    ]  # fmt: skip
    written = [out / "throughput.json", out / "throughput.png"]
    write_json(written[0], values)
    rows = _rows(found)
    rates = [rate for point in found.points for rate in (point.float32, point.ternary)]
    span = (min(rates), max(rates))
    panels = []
    for network in found.networks:
        mine = [row for row in rows if row[0].network == network.name]
        title = f"{network.name}: {100 * network.connected:.0f} % fully connected"
        panels.append((title, partial(draw_throughput, rows=mine, gigabits=found.gigabits, span=span)))
    write_png(written[1], panels)
    return written
