"""Debian 12 and 13 as they come: roots made by debootstrap, in which rocmbuild installs, compiles and examines.

Of the release that the machine has itself no root is made: all other tests run there.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import ROOT, require

from rocmbuild.toolchain.debian import Source, codename_of, machine_sources

pytestmark = pytest.mark.slow

PURE = ("elftools", "filelock", "msgpack", "packaging", "platformdirs", "rocm_bootstrap")
RELEASES = {"bookworm": ("g++", "python3"), "trixie": ("g++", "python3", "clang")}
"""What a root has: in the second one the distribution's own clang is installed too."""

OTHERS = [release for release in RELEASES if f"VERSION_CODENAME={release}" not in Path("/etc/os-release").read_text()]

INSIDE = """
set -e
export HOME=/root PYTHONPATH=/site PYTHONDONTWRITEBYTECODE=1 PATH=/usr/sbin:/usr/bin:/sbin:/bin
python3 -m rocmbuild toolchain install --json > /out/install.json
python3 -m rocmbuild toolchain install --json > /out/again.json
python3 -m rocmbuild toolchain verify > /out/verify
python3 -m rocmbuild toolchain probe --json > /out/probe.json
python3 -m rocmbuild toolchain list --json > /out/list.json
python3 -m rocmbuild doctor --json > /out/doctor.json || true
prefix=$(python3 -m rocmbuild toolchain env | sed -n 's/^export ROCM_PATH=//p')
cd /out
"$prefix/bin/hipcc" --offload-arch=gfx1201 --offload-arch=gfx1100 -fPIC -shared k.hip -o k.so
"$prefix/bin/llvm-readelf" -S k.so > sections
"""
KERNEL = """#include <hip/hip_runtime.h>
#include <vector>
#include <cmath>
__global__ void k(float* y) { y[threadIdx.x] = std::sqrt(y[threadIdx.x]); }
extern "C" int run(float* y) { k<<<1, 32>>>(y); std::vector<int> v{hipGetLastError()}; return v[0]; }
"""


def archive() -> tuple[Source, Source | None]:
    """This machine's entries for its release's archive and for security updates."""
    codename = codename_of(Path("/etc/os-release").read_text())
    entries = machine_sources()
    plain = next(entry for entry in entries if codename in entry.suites)
    return plain, next((entry for entry in entries if f"{codename}-security" in entry.suites), None)


def settings() -> str:
    """How this machine reaches its mirror: proxies, certificates, what it says of old lists."""
    done = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True)
    kept = ("Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::Check-Valid-Until")
    return "".join(f"{line}\n" for line in done.stdout.splitlines() if line.startswith(kept))


@pytest.mark.parametrize("release", OTHERS)
def test_a_fresh_debian(release: str, tmp_path: Path) -> None:
    if os.environ.get("ROCMBUILD_TEST_OFFLINE"):
        require("network")
    debootstrap = shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin") or require("debootstrap")
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        require("root, for debootstrap")
    plain, security = archive()
    root, out, site = (tmp_path / name for name in ("root", "out", "site"))
    for folder in (root, out, site):
        folder.mkdir()
    (out / "k.hip").write_text(KERNEL)
    shutil.copytree(ROOT / "rocmbuild", site / "rocmbuild", ignore=shutil.ignore_patterns("__pycache__"))
    for name in PURE:
        spec = find_spec(name)
        assert spec and spec.origin
        shutil.copytree(Path(spec.origin).parent, site / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    entries = f"deb {plain.uris[0]} {release} main\n"
    if security:
        entries += f"deb {security.uris[0]} {release}-security main\n"
    (tmp_path / "sources.list").write_text(entries)
    (tmp_path / "apt.conf").write_text(settings())
    (tmp_path / "inside").write_text(INSIDE)
    keyring = plain.fields.get("signed-by", "")
    trust = [f"--keyring={keyring}"] if keyring.startswith("/") else []
    words = ["--variant=minbase", f"--include={','.join(RELEASES[release])}", *trust]
    make = shlex.join([debootstrap, *words, release, str(root), plain.uris[0]])
    script = f"""
mount -t tmpfs -o size=6g none {root}
{make} > {tmp_path}/debootstrap.log 2>&1 || {{ tail -5 {tmp_path}/debootstrap.log; exit 9; }}
for name in resolv.conf hosts; do cp -L /etc/$name {root}/etc/$name; done
cp {tmp_path}/sources.list {root}/etc/apt/sources.list
cp {tmp_path}/apt.conf {root}/etc/apt/apt.conf.d/99machine
mkdir {root}/site {root}/out
mount --bind {site} {root}/site
mount --bind {out} {root}/out
mount --rbind /proc {root}/proc
mount --rbind /dev {root}/dev
cp {tmp_path}/inside {root}/inside
chroot {root} /bin/sh /inside
"""
    done = subprocess.run(["unshare", "-m", "sh", "-ec", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made = json.loads((out / "install.json").read_text())
    assert made == json.loads((out / "again.json").read_text())
    assert (out / "verify").read_text() == f"{made['name']}: as installed\n"
    facts = json.loads((out / "probe.json").read_text())
    assert facts["headers"] == ""
    assert {(fact["wave"], fact["reason"]) for fact in facts["targets"]} == {(32, "")}
    first = json.loads((out / "list.json").read_text())[0]
    assert (first["name"], first["chosen"]) == (made["name"], True)
    checks = {check["name"]: check for check in json.loads((out / "doctor.json").read_text())["checks"]}
    assert [name for name, check in checks.items() if check["status"] == "fail"] == []
    assert ".hip_fatbin" in (out / "sections").read_text()
