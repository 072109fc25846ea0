"""What is measured, what came of it, and how that is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["SHAPES", "Record", "Shape", "plot", "render"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One product. experts 0: a plain one; else a routed one, of the experts' gate and up in one, or of their down.

    A down projection has a row of X for each slot, any other product one for each token.
    """

    rows: int
    cols: int
    experts: int = 0
    top_k: int = 1
    down: bool = False

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.cols}" + (f" {self.experts}e{self.top_k}" if self.experts else "")


SHAPES = {
    "8B": (Shape(rows=4096, cols=4096), Shape(rows=14336, cols=4096), Shape(rows=4096, cols=14336)),
    "30B-A3B": (
        Shape(rows=1536, cols=2048, experts=128, top_k=8),
        Shape(rows=2048, cols=768, experts=128, top_k=8, down=True),
    ),
    "256-experts": (
        Shape(rows=4096, cols=4096, experts=256, top_k=6),
        Shape(rows=4096, cols=2048, experts=256, top_k=6, down=True),
    ),
    "square": (Shape(rows=4096, cols=4096),),
    "small": (
        Shape(rows=256, cols=1024),
        Shape(rows=64, cols=512, experts=8, top_k=2),
        Shape(rows=64, cols=256, experts=8, top_k=2, down=True),
    ),
}
"""Of models of that name: attention, up and down; the experts' gate with up, and down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measurement. Times in microseconds; bytes: of the weights that the product reads."""

    op: str
    type: str
    shape: str
    vectors: int
    us: float
    bytes: int
    nmse: float
    operations: int = 0
    baselines: dict[str, float] = field(default_factory=dict)

    @property
    def gigabytes_a_second(self) -> float:
        return self.bytes / self.us / 1e3

    @property
    def tera_operations_a_second(self) -> float:
        return self.operations / self.us / 1e6

    def share(self, baseline: str) -> float | None:
        """The time of a baseline over the time of the product."""
        other = self.baselines.get(baseline)
        return None if other is None else other / self.us


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _times(share: float | None) -> str:
    return "-" if share is None else f"{share:.2f}"


def _cell(baseline: str, shown: Callable[[float | None], str]) -> Callable[[Record], str]:
    return lambda each: shown(each.share(baseline))


def render(records: Sequence[Record]) -> str:
    """A table: microseconds, speeds, the shares of the ceilings, and how many times as long each baseline takes."""
    columns: list[tuple[str, Callable[[Record], str]]] = [
        ("op", lambda each: each.op.removeprefix("ggml_")),
        ("type", lambda each: each.type),
        ("shape", lambda each: each.shape),
        ("n", lambda each: str(each.vectors)),
        ("us", lambda each: f"{each.us:.1f}"),
        ("GB/s", lambda each: f"{each.gigabytes_a_second:.3g}"),
        ("TOPS", lambda each: f"{each.tera_operations_a_second:.3g}"),
    ]
    there = {name for each in records for name in each.baselines}
    for head, names, shown in (
        ("of", ("read", "mma"), _percent),
        ("x", ("llama.cpp", "matmul", "dense", "int8"), _times),
    ):
        columns.extend((f"{head} {name}", _cell(name, shown)) for name in names if name in there)
    rows = [[head for head, _ in columns], *([cell(each) for _, cell in columns] for each in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw a report: for each format how much of a pure read's speed the product reaches, beside llama.cpp's."""
    try:
        import matplotlib  # late: only the plot wants it
    except ModuleNotFoundError:
        raise SystemExit("bench: --plot needs matplotlib; install it (`pip install matplotlib`)") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = [each for each in report["records"] if each["op"] == "ggml_mul_mat_vec_a8"]
    if not records:
        raise SystemExit("bench: --plot draws the suite decode, of which there is no record")
    shapes = list(dict.fromkeys(each["shape"] for each in records))
    counts = sorted({each["vectors"] for each in records})[:1]
    figure, axes = pyplot.subplots(1, len(shapes), figsize=(4.2 * len(shapes), 5), sharey=True, squeeze=False)
    for axis, shape in zip(axes[0], shapes, strict=True):
        here = [each for each in records if each["shape"] == shape and each["vectors"] in counts]
        names = [each["type"] for each in here]
        places = range(len(here))
        read = [each["baselines"]["read"] for each in here]
        axis.barh(
            [place - 0.2 for place in places],
            [100 * one / each["us"] for one, each in zip(read, here, strict=True)],
            0.4,
            label="gguf_kernels",
        )
        axis.barh(
            [place + 0.2 for place in places],
            [
                100 * one / each["baselines"]["llama.cpp"] if "llama.cpp" in each["baselines"] else 0
                for one, each in zip(read, here, strict=True)
            ],
            0.4,
            label="llama.cpp",
        )
        axis.set_yticks(list(places), names)
        axis.invert_yaxis()
        axis.set_xlim(0, 100)
        axis.set_xlabel("% of a pure read")
        axis.set_title(shape)
    axes[0][0].legend(loc="lower right")
    figure.suptitle(f"{report['device']}, {', '.join(map(str, counts))} vector, {report['date']}")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
