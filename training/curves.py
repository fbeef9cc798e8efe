"""Curves of a run: one JSON object a line, and a plot of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from training.errors import writing

Point = dict[str, float]
"""What was measured after "step" steps, by name."""

LINES = "curves.jsonl"
"""The file of the points; it is there from the beginning of a run."""

_PLOT = "curves.png"


def read(folder: Path) -> list[Point]:
    """Returns the points in a folder, up to a line that is none: a crash may have cut it short."""
    file = folder / LINES
    if not file.is_file():
        return []
    points = []
    for line in file.read_bytes().splitlines():
        try:
            point = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not (isinstance(point, dict) and isinstance(point.get("step"), int)):
            break
        points.append(point)
    return points


def append(folder: Path, point: Point) -> None:
    """Adds a line.

    Raises:
        RunError: It cannot be written.
    """
    with writing(folder / LINES), (folder / LINES).open("a", encoding="utf-8") as file:
        file.write(json.dumps(point) + "\n")


def rewrite(folder: Path, points: Sequence[Point]) -> None:
    """Replaces all lines.

    Raises:
        RunError: They cannot be written.
    """
    text = "".join(json.dumps(point) + "\n" for point in points)
    with writing(folder / LINES):
        (folder / LINES).write_text(text, encoding="utf-8")


def plot(folder: Path, points: Sequence[Point]) -> None:
    """Draws losses above, everything else below.

    Raises:
        RunError: The picture cannot be written.
    """
    # Without pyplot: it keeps global state and looks for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = sorted({name for point in points for name in point} - {"step"})
    losses = [name for name in names if name.startswith("loss")]
    others = [name for name in names if not name.startswith("loss")]
    figure = Figure(figsize=(8, 7), layout="constrained")
    FigureCanvasAgg(figure)
    groups = {"loss, nats": losses, "score, tokens a pass, shares": others}
    for axes, (what, group) in zip(figure.subplots(2, sharex=True), groups.items(), strict=True):
        axes.set_ylabel(what)
        for name in group:
            drawn = [(point["step"], point[name]) for point in points if name in point]
            axes.plot(*zip(*drawn, strict=True), label=name)
        axes.grid(alpha=0.3)
        if group:
            axes.legend(fontsize="small", ncols=2)
    axes.set_xlabel("step")
    with writing(folder / _PLOT):
        figure.savefig(folder / _PLOT, dpi=110)
