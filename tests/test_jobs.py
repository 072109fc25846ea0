"""How many commands run at once: decided by what the kernel says of processors, memory and control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocmbuild.build.jobs import MEMORY, Machine, choose_jobs, read_machine

GIB = 1 << 30
OWN = len(os.sched_getaffinity(0))


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("processors", "memory", "kinds", "count"),
    [
        (8, 100 * GIB, ["device", "cxx"], 8),
        (8, None, ["device"], 8),
        (8, 3 * MEMORY["device"], ["device", "host", "link"], 3),
        (8, 3 * MEMORY["device"] - 1, ["device"], 2),
        (8, 0, ["device"], 1),
        (8, 1, ["link", "stub"], 8),
        (1, 100 * GIB, ["cuda"], 1),
        (4, 2 * MEMORY["cuda"], ["cuda", "device"], 2),
    ],
)
def test_memory_lowers_the_number_that_processors_give(
    processors: int, memory: int | None, kinds: list[str], count: int
) -> None:
    jobs = choose_jobs(Machine(processors=processors, memory=memory), kinds)
    assert jobs.count == count
    assert f"{processors} processors" in jobs.reason


def test_this_machine_says_something_plausible() -> None:
    machine = read_machine()
    assert 1 <= machine.processors <= OWN
    assert machine.memory is not None
    assert 0 <= machine.memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_nothing_is_known_where_nothing_says_it(tmp_path: Path) -> None:
    assert read_machine(tmp_path) == Machine(processors=OWN, memory=None)


def test_a_group_of_version_2_and_those_around_it_limit(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:   {20 * GIB >> 10} kB\n",
        "proc/self/cgroup": "0::/pod/job\n",
        "sys/fs/cgroup/pod/job/memory.max": "max\n",
        "sys/fs/cgroup/pod/job/memory.current": "5\n",
        "sys/fs/cgroup/pod/job/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        "sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
    }
    assert read_machine(system(tmp_path, files)) == Machine(processors=1, memory=2 * GIB)


def test_groups_of_version_1_limit(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": f"MemAvailable: {20 * GIB >> 10} kB\n",
        "proc/self/cgroup": "9:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n",
        "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000\n",
    }
    assert read_machine(system(tmp_path, files)) == Machine(processors=OWN, memory=0)


def test_nonsense_is_no_limit(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemAvailable: much kB\n\n",
        "proc/self/cgroup": "nonsense\n0::/\n",
        "sys/fs/cgroup/memory.max": "\n",
        "sys/fs/cgroup/memory.current": "x\n",
        "sys/fs/cgroup/cpu.max": "100000 0\n",
    }
    assert read_machine(system(tmp_path, files)) == Machine(processors=OWN, memory=None)
