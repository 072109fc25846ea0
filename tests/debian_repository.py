"""A small signed Debian archive on disk, for tests of what apt does with it."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from support import require

from rocmbuild.toolchain.debian import Apt, parse_sources, plan_sources


class Repository:
    """A small archive on disk, signed by a key of its own."""

    def __init__(self, folder: Path) -> None:
        for tool in ("apt-get", "gpg", "dpkg-deb", "gcc"):
            if not shutil.which(tool):
                require(tool)
        self.folder = folder
        self.pool = folder / "archive" / "pool"
        self.pool.mkdir(parents=True)
        self.records: list[str] = []

    @property
    def uri(self) -> str:
        return f"file:{self.folder / 'archive'}"

    def key(self, name: str) -> Path:
        """A new key; the folder to sign with, whose `public.asc` is its public part."""
        home = self.folder / name
        home.mkdir(mode=0o700)
        base = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", "", "--pinentry-mode", "loopback"]
        subprocess.run([*base, "--quick-gen-key", name, "ed25519", "sign", "never"], check=True, capture_output=True)
        armored = subprocess.run([*base, "--armor", "--export"], check=True, capture_output=True).stdout
        (home / "public.asc").write_bytes(armored)
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False, capture_output=True)
        return home

    def add(self, name: str, version: str, files: Mapping[str, Path], depends: str = "") -> None:
        tree = self.folder / "build" / name
        (tree / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: nobody <n@example.org>\n"
        control += f"Depends: {depends}\n" if depends else ""
        (tree / "DEBIAN" / "control").write_text(control + "Description: for a test\n")
        for target, source in files.items():
            path = tree / target
            path.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, path, symlinks=True)
            else:
                shutil.copy2(source, path, follow_symlinks=False)
        deb = self.pool / f"{name}_{version.replace(':', '%3a')}_amd64.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, deb], check=True, capture_output=True)
        data = deb.read_bytes()
        self.records.append(
            f"{control}Filename: pool/{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
            "Description: for a test\n"
        )

    def publish(self, suite: str, home: Path | None) -> None:
        """Write the suite's index and, with a key, sign it."""
        folder = self.folder / "archive" / "dists" / suite
        index = folder / "main" / "binary-amd64"
        index.mkdir(parents=True, exist_ok=True)
        plain = "\n".join(self.records).encode()
        packed = gzip.compress(plain, mtime=0)
        (index / "Packages").write_bytes(plain)
        (index / "Packages.gz").write_bytes(packed)
        listed = [("Packages", plain), ("Packages.gz", packed)]
        release = (
            f"Origin: test\nSuite: {suite}\nCodename: {suite}\nArchitectures: amd64\nComponents: main\n"
            "Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n"
        )
        for name, data in listed:
            release += f" {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-amd64/{name}\n"
        (folder / "Release").write_text(release)
        (folder / "InRelease").unlink(missing_ok=True)
        if home is not None:
            base = [
                "gpg",
                "--homedir",
                str(home),
                "--batch",
                "--quiet",
                "--passphrase",
                "",
                "--pinentry-mode",
                "loopback",
            ]
            subprocess.run([*base, "--clearsign", "-o", folder / "InRelease", folder / "Release"], check=True)
            subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False, capture_output=True)

    def entry(self, suites: str, signed_by: str) -> str:
        return (
            f"Types: deb\nURIs: {self.uri}\nSuites: {suites}\nComponents: main\nSigned-By: {signed_by}\nTrusted: yes\n"
        )

    def apt(self, folder: Path, entry: str, newer: tuple[str, ...] = ("sid",)) -> Apt:
        return Apt(folder, plan_sources(parse_sources(entry, deb822=True), codename="bookworm", newer=newer))
