"""Debian's archive without root: apt with folders of its own, on the machine's own mirror and keyring.

The machine's source entries say which mirror serves its release and which key signs it; only the suite is changed. apt
checks every signature and every package digest; an entry's `trusted=yes` and its `allow-insecure` are never taken over.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocmbuild.errors import EnvironmentFailure
from rocmbuild.process import Completed, run
from rocmbuild.toolchain.store import sha256_of

__all__ = [
    "Apt",
    "Archive",
    "Available",
    "Dependency",
    "Package",
    "Source",
    "Sources",
    "codename_of",
    "machine_sources",
    "parse_depends",
    "parse_sources",
    "plan_sources",
    "upstream",
]

_ARCHITECTURE = "amd64"
_ALIASES = ("stable", "oldstable", "testing", "unstable", "sid")
_KEPT_FIELDS = ("signed-by", "check-valid-until", "check-date", "valid-until-max", "date-max-future", "by-hash")
_BLANK_LINES = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One `deb` entry. fields: the options taken over, by lower-case deb822 name; values may have many lines."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What apt is given. own: the suites of the machine's release; newer: those with newer HIP; text: deb822."""

    own: tuple[str, ...]
    newer: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """One version of a package that a suite offers."""

    name: str
    version: str
    suite: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """One alternative of a Depends field: a name, and `relation version` when it has one."""

    name: str
    relation: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that was downloaded. depends: each group is a list of alternatives."""

    name: str
    version: str
    suite: str
    file: Path
    size: int
    sha256: str
    depends: tuple[tuple[Dependency, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A package's file as the signed lists describe it."""

    package: Available
    file: str
    size: int
    sha256: str


def codename_of(os_release: str) -> str:
    """The Debian codename that an os-release file names. Raises EnvironmentFailure when it is not Debian's."""
    facts = {}
    for line in os_release.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            facts[key.strip()] = value.strip().strip("\"'")
    if facts.get("ID") != "debian" or not facts.get("VERSION_CODENAME"):
        found = facts.get("PRETTY_NAME") or facts.get("ID") or "unknown"
        raise EnvironmentFailure(
            f"a toolchain from Debian packages needs Debian 12 or newer; this system is {found}",
            hint="install ROCm from AMD and set ROCM_PATH to it",
        )
    return facts["VERSION_CODENAME"]


def parse_sources(text: str, *, deb822: bool) -> tuple[Source, ...]:
    """The enabled binary entries of one sources file, in either of apt's two formats."""
    return tuple(_parse_deb822(text) if deb822 else _parse_one_line(text))


def _parse_one_line(text: str) -> Iterable[Source]:
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if not match:
            continue
        options, uri, suite, components = match.groups()
        fields = {}
        for option in (options or "").split():
            key, _, value = option.partition("=")
            fields[key.rstrip("+-").lower()] = value.replace(",", " ")
        yield _source([uri], [suite], components.split(), fields)


def _parse_deb822(text: str) -> Iterable[Source]:
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in _BLANK_LINES.split(kept):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line[:1] in " \t" and key:
                fields[key] += "\n" + line
            else:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        yield _source(
            fields.get("uris", "").split(),
            fields.get("suites", "").split(),
            fields.get("components", "").split(),
            fields,
        )


def _source(uris: list[str], suites: list[str], components: list[str], fields: Mapping[str, str]) -> Source:
    kept = {key: value for key, value in fields.items() if key in _KEPT_FIELDS and value.strip()}
    return Source(uris=tuple(uris), suites=tuple(suites), components=tuple(components), fields=kept)


def machine_sources(etc: Path = Path("/etc/apt")) -> tuple[Source, ...]:
    """All entries of the machine, in apt's own order. Raises EnvironmentFailure for a file that cannot be read."""
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    found: list[Source] = []
    for file in files:
        if file.suffix not in (".list", ".sources") or not file.is_file():
            continue
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as err:
            raise EnvironmentFailure(f"{file}: cannot be read ({err.strerror})") from err
        found.extend(parse_sources(text, deb822=file.suffix == ".sources"))
    return tuple(found)


def plan_sources(entries: Sequence[Source], *, codename: str, newer: Sequence[str]) -> Sources:
    """The machine's own entries for its release, and the same mirror and key with the newer suites.

    Raises EnvironmentFailure when no entry serves the release.
    """

    def of_release(suite: str) -> bool:
        return re.split("[-/]", suite, maxsplit=1)[0] == codename

    own = [entry for entry in entries if "main" in entry.components and _usable(entry)]
    named = [entry for entry in own if any(map(of_release, entry.suites))]
    if not named:  # a machine that follows a moving suite by its alias
        named = [entry for entry in own if any(re.split("[-/]", s, maxsplit=1)[0] in _ALIASES for s in entry.suites)]
    plain = (codename, *_ALIASES)
    archive = next((entry for entry in named if any(suite in plain for suite in entry.suites)), None)
    if archive is None:
        raise EnvironmentFailure(
            f"none of apt's source entries serves {codename}'s main archive, so there is no mirror and no key to use",
            hint="write an entry for it to /etc/apt/sources.list.d (a `deb` line or a .sources file)",
        )
    own_suites = tuple(dict.fromkeys(suite for entry in named for suite in entry.suites))
    added = tuple(suite for suite in newer if suite not in own_suites)
    stanzas = [_stanza(entry, entry.suites) for entry in named]
    if added:
        stanzas.append(_stanza(archive, added))
    return Sources(own=own_suites, newer=tuple(newer), text="\n".join(stanzas))


def _usable(entry: Source) -> bool:
    return bool(entry.uris) and bool(entry.suites) and not any(uri.startswith("cdrom:") for uri in entry.uris)


def _stanza(entry: Source, suites: Sequence[str]) -> str:
    """One deb822 entry: package lists of this architecture's main component alone."""
    lines = [
        "Types: deb",
        f"URIs: {' '.join(re.sub('^file:', 'copy:', uri) for uri in entry.uris)}",  # `download` copies no file: package
        f"Suites: {' '.join(suites)}",
        "Components: main",
        f"Architectures: {_ARCHITECTURE}",
        "Targets: Packages",
        "PDiffs: no",
        *(f"{key.title()}: {value}" for key, value in entry.fields.items()),
    ]
    return "\n".join(lines) + "\n"


def parse_depends(value: str) -> tuple[tuple[Dependency, ...], ...]:
    """A Depends field as groups of alternatives."""
    groups = []
    for group in value.split(","):
        alternatives = []
        for word in group.split("|"):
            match = re.match(r"\s*([a-z0-9][a-z0-9+.-]*)(?::\w+)?\s*(?:\((<<|<=|=|>=|>>)\s*([^)\s]+)\s*\))?", word)
            if match:
                name, relation, version = match.groups()
                alternatives.append(Dependency(name=name, relation=relation or "", version=version or ""))
        if alternatives:
            groups.append(tuple(alternatives))
    return tuple(groups)


def upstream(version: str) -> tuple[int, ...]:
    """The numbers of a Debian version's upstream part: `1:22.1.8-1~deb12u1` gives (22, 1, 8)."""
    bare = version.split(":", 1)[-1].rsplit("-", 1)[0]
    match = re.match(r"\d+(?:\.\d+)*", bare)
    return tuple(int(number) for number in match.group().split(".")) if match else ()


class Apt:
    """apt in a folder of its own. Nothing of the system is changed, and nothing but its settings is used."""

    def __init__(self, folder: Path, sources: Sources) -> None:
        self.sources = sources
        self._folder = folder
        for name in ("lists/partial", "cache/archives/partial", "etc", "state"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "etc" / "main.sources").write_text(sources.text)
        (folder / "etc" / "apt.conf").write_text(self._settings())
        (folder / "state" / "status").write_bytes(b"")
        self._environ = {**os.environ, "APT_CONFIG": str(folder / "etc" / "apt.conf"), "LC_ALL": "C"}

    def _settings(self) -> str:
        """The machine's Acquire settings (proxies, certificates, retries), without its hooks and its laxities."""
        dump = run(["apt-config", "dump"], what="reading apt's settings", error=EnvironmentFailure, hint=_NO_APT)
        taken = [
            line
            for line in dump.stdout.splitlines()
            if line.startswith("Acquire::") and not line.startswith(("Acquire::Allow", "Acquire::IndexTargets"))
        ]
        quoted = str(self._folder)
        own = [
            f'Dir::State "{quoted}/state";',
            f'Dir::State::status "{quoted}/state/status";',
            f'Dir::State::lists "{quoted}/lists";',
            f'Dir::Cache "{quoted}/cache";',
            'Dir::Cache::pkgcache "pkgcache.bin";',
            'Dir::Cache::srcpkgcache "";',
            'Dir::Etc::main "/dev/null";',
            'Dir::Etc::parts "/dev/null";',
            'Dir::Etc::sourcelist "/dev/null";',
            f'Dir::Etc::sourceparts "{quoted}/etc";',
            'Dir::Etc::preferences "/dev/null";',
            'Dir::Etc::preferencesparts "/dev/null";',
            f'APT::Architecture "{_ARCHITECTURE}";',
            f'APT::Architectures {{ "{_ARCHITECTURE}"; }};',
            'APT::Update::Error-Mode "any";',
            'APT::Get::AllowUnauthenticated "false";',
            'APT::Sandbox::User "";',
            'Acquire::AllowInsecureRepositories "false";',
            'Acquire::AllowWeakRepositories "false";',
            'Acquire::AllowDowngradeToInsecureRepositories "false";',
            'Acquire::Languages "none";',
        ]
        return "\n".join([*taken, *own]) + "\n"

    def update(self) -> None:
        """Fetch the package lists. Raises EnvironmentFailure that names each repository that failed."""
        done = self._run(["apt-get", "-q", "update"], what="reading the package lists", check=False)
        faults = _faults(done)
        if done.returncode != 0 or faults:
            raise EnvironmentFailure(
                "the package lists could not be read:\n" + "\n".join(f"  {fault}" for fault in faults or [done.output]),
                hint=_REACH,
            )

    def names(self, prefix: str) -> tuple[str, ...]:
        """All package names that begin so."""
        done = self._run(["apt-cache", "pkgnames", prefix], what="looking for packages")
        return tuple(sorted(done.stdout.split()))

    def available(self, names: Sequence[str]) -> dict[str, tuple[Available, ...]]:
        """The versions of each name, newest first; a name that nobody offers has none."""
        found: dict[str, list[Available]] = {name: [] for name in names}
        if names:
            done = self._run(["apt-cache", "madison", *names], what="looking for versions", check=False)
            for line in done.stdout.splitlines():
                parts = [part.strip() for part in line.split("|")]
                if len(parts) == 3 and parts[0] in found and parts[2].endswith("Packages"):
                    suite = parts[2].split()[1].rsplit("/", 1)[0]
                    found[parts[0]].append(Available(name=parts[0], version=parts[1], suite=suite))
        return {name: tuple(versions) for name, versions in found.items()}

    def archives(self, wanted: Sequence[Available]) -> tuple[Archive, ...]:
        """File name, size and digest of each package, from the lists; nothing is fetched."""
        if not wanted:
            return ()
        words = [f"{package.name}={package.version}" for package in wanted]
        done = self._run(["apt-cache", "show", *words], what="looking for packages", check=False)
        found: dict[tuple[str, str], Archive] = {}
        asked = {(package.name, package.version): package for package in wanted}
        for record in _BLANK_LINES.split(done.stdout):
            fields = dict(re.findall(r"^(Package|Version|Architecture|Size|SHA256): *(\S+)$", record, re.MULTILINE))
            package = asked.get((fields.get("Package", ""), fields.get("Version", "")))
            if package is not None and fields.get("Size", "").isdigit() and "SHA256" in fields:
                escaped = package.version.replace(":", "%3a")
                file = f"{package.name}_{escaped}_{fields.get('Architecture', _ARCHITECTURE)}.deb"
                archive = Archive(package=package, file=file, size=int(fields["Size"]), sha256=fields["SHA256"])
                found.setdefault((package.name, package.version), archive)
        absent = [f"{name} {version}" for name, version in asked if (name, version) not in found]
        if absent:
            raise EnvironmentFailure(
                f"the package lists give no SHA-256 digest for {', '.join(absent)}, so they cannot be checked"
            )
        return tuple(found[package.name, package.version] for package in wanted)

    def download(
        self, wanted: Sequence[Available], into: Path, *, report: Callable[[int, int], None] | None = None
    ) -> tuple[Package, ...]:
        """Fetch packages, digests checked, and read what each depends on.

        Files that an earlier call left in `into` are used again when their digests are right. report: called with the
        bytes that are there and those wanted.
        """
        into.mkdir(parents=True, exist_ok=True)
        archives = self.archives(wanted)
        total = sum(archive.size for archive in archives)
        missing = [archive.package for archive in archives if not _holds(into, archive)]
        if missing:
            words = [f"{package.name}={package.version}" for package in missing]

            def present() -> None:
                if report is not None:
                    sizes = (_size(into / archive.file) for archive in archives)
                    report(min(sum(sizes), total), total)

            with _every(0.2, present):
                done = self._run(
                    ["apt-get", "-q", "download", *words], what="downloading packages", check=False, cwd=into
                )
            faults = _faults(done)
            if done.returncode != 0:
                raise EnvironmentFailure(
                    "packages could not be downloaded:\n"
                    + "\n".join(f"  {fault}" for fault in faults or [done.output]),
                    hint=_REACH,
                )
        if report is not None:
            report(total, total)
        wrong = [archive.file for archive in archives if not _holds(into, archive)]
        if wrong:
            raise EnvironmentFailure(f"downloaded, but not with the digests of the package lists: {', '.join(wrong)}")
        return tuple(_read(archive, into) for archive in archives)

    def _run(self, argv: Sequence[str], *, what: str, check: bool = True, cwd: Path | None = None) -> Completed:
        return run(argv, what=what, cwd=cwd, env=self._environ, check=check, error=EnvironmentFailure, hint=_NO_APT)


_NO_APT = "apt and dpkg are needed; elsewhere install ROCm from AMD and set ROCM_PATH to it"
_REACH = (
    "check the network, the proxy and the mirror in apt's source entries, then run `rocmbuild toolchain install` again"
)


def _faults(done: Completed) -> list[str]:
    """apt's own lines about what failed: repositories and reasons, each once."""
    lines = []
    for line in done.output.splitlines():
        if re.match(r"(E|W|Err):", line) and not re.search(
            r"Some index files failed|Unable to fetch some archives", line
        ):
            lines.append(re.sub(r"^(E|W):\s*", "", line.strip()))
        elif lines and line.startswith("  ") and lines[-1].startswith("Err:"):
            lines[-1] += ": " + line.strip()
    named = [line for line in lines if not line.startswith("Err:")]
    return list(dict.fromkeys(named or lines))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _holds(folder: Path, archive: Archive) -> bool:
    """Whether a package's file is there, whole and unchanged."""
    path = folder / archive.file
    return _size(path) == archive.size and sha256_of(path) == archive.sha256


@contextmanager
def _every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call act now and then while the body runs."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(seconds):
            act()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _read(archive: Archive, folder: Path) -> Package:
    file = folder / archive.file
    done = run(["dpkg-deb", "-f", file, "Depends"], what=f"reading {file.name}", error=EnvironmentFailure, hint=_NO_APT)
    package = archive.package
    return Package(
        name=package.name,
        version=package.version,
        suite=package.suite,
        file=file,
        size=archive.size,
        sha256=archive.sha256,
        depends=parse_depends(done.stdout),
    )
