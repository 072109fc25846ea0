"""Medians of times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

__all__ = ["time_cpu", "time_gpu"]

Call = Callable[[int], object]


def time_cpu(call: Call, copies: int, seconds: float) -> float:
    """Median microseconds of call(0), call(1), ... for about `seconds`."""
    call(0)
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        call(len(taken) % copies)
        taken.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(taken)


def time_gpu(call: Call, copies: int, replays: int, seconds: float) -> float:
    """Median microseconds of one call, over replays of a graph that runs call(0) to call(copies - 1).

    As many replays as take about `seconds`, at least 5 and at most `replays`.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(0)
        torch.cuda.set_sync_debug_mode("error")  # what waits for the GPU is to say so here: a capture would not recover
        try:
            for index in range(min(copies, 3)):
                call(index)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(copies):
            call(index)

    def event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def timed(count: int) -> list[float]:
        """Milliseconds of each of so many replays."""
        events = [(event(), event()) for _ in range(count)]
        for begin, end in events:
            begin.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in events]

    least = min(timed(3))
    count = max(5, min(replays, int(seconds * 1e3 / max(least, 1e-3))))
    taken = statistics.median(timed(count)) * 1e3 / copies
    graph.reset()
    return float(taken)
