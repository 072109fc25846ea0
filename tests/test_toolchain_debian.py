"""Debian's archive: the machine's entries in both formats, apt on small signed repositories, and what fits together."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from debian_repository import Repository
from support import require

from rocmbuild.errors import EnvironmentFailure
from rocmbuild.toolchain.debian import (
    Apt,
    Available,
    Dependency,
    Source,
    Sources,
    codename_of,
    machine_sources,
    parse_depends,
    parse_sources,
    plan_sources,
    upstream,
)
from rocmbuild.toolchain.elf import read_dynamic, runpath_to_rpath, shorten_soname
from rocmbuild.toolchain.install import choose_set
from rocmbuild.toolchain.packages import SYSTEM_LIBRARIES, Unpacked, satisfies

MIRROR = "http://mirror.example/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

DEB822 = f"""# written by an installer
Types: deb deb-src
# a comment inside
URIs: {MIRROR}
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: {KEYRING}

Types: deb
URIs: {MIRROR}-security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----
Trusted: yes
Allow-Insecure: yes
Check-Valid-Until: no

Types: deb
Enabled: no
URIs: {MIRROR}
Suites: sid
Components: main

Types: deb-src
URIs: {MIRROR}
Suites: bookworm
Components: main
"""

ONE_LINE = f"""
#deb {MIRROR} sid main
deb {MIRROR} bookworm main contrib # a comment
deb [ arch=amd64,i386 signed-by={KEYRING} trusted=yes check-valid-until=no ] {MIRROR}-security bookworm-security main
deb-src {MIRROR} bookworm main
deb cdrom:[Debian]/ bookworm main
"""


def test_deb822_entries() -> None:
    plain, security = parse_sources(DEB822, deb822=True)
    assert plain == Source(
        uris=(MIRROR,),
        suites=("bookworm", "bookworm-updates"),
        components=("main", "contrib"),
        fields={"signed-by": KEYRING},
    )
    assert set(security.fields) == {"signed-by", "check-valid-until"}
    assert security.fields["signed-by"].splitlines()[1] == " -----BEGIN PGP PUBLIC KEY BLOCK-----"


def test_one_line_entries() -> None:
    plain, security, cdrom = parse_sources(ONE_LINE, deb822=False)
    assert plain == Source(uris=(MIRROR,), suites=("bookworm",), components=("main", "contrib"), fields={})
    assert dict(security.fields) == {"signed-by": KEYRING, "check-valid-until": "no"}
    assert cdrom.uris[0].startswith("cdrom:")


@pytest.mark.parametrize(("text", "deb822"), [(DEB822, True), (ONE_LINE, False)])
def test_only_the_suite_changes(text: str, deb822: bool) -> None:
    plan = plan_sources(parse_sources(text, deb822=deb822), codename="bookworm", newer=("experimental", "sid"))
    assert "bookworm-security" in plan.own
    assert plan.newer == ("experimental", "sid")
    stanzas = plan.text.split("\n\n")
    assert len(stanzas) == 3
    newer = stanzas[-1].splitlines()
    assert f"URIs: {MIRROR}" in newer
    assert "Suites: experimental sid" in newer
    assert (f"Signed-By: {KEYRING}" in newer) == deb822  # without one, apt's default keyrings hold
    assert "rusted" not in plan.text
    assert "nsecure" not in plan.text
    assert "cdrom" not in plan.text
    assert "contrib" not in plan.text
    (check,) = [stanza for stanza in stanzas if "Check-Valid-Until: no" in stanza]
    assert "bookworm-security" in check
    reread = parse_sources(plan.text, deb822=True)
    assert reread[1].fields["signed-by"].split() == parse_sources(text, deb822=deb822)[1].fields["signed-by"].split()


def test_entries_of_a_container(tmp_path: Path) -> None:
    """An image may have its entry in sources.list, in either kind of file beside it, and files that apt ignores."""
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(f"deb {MIRROR} trixie main\n")
    (tmp_path / "sources.list.d" / "b.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "a.list.disabled").write_text(f"deb {MIRROR} potato main\n")
    suites = [entry.suites for entry in machine_sources(tmp_path)]
    assert suites == [("trixie",), ("bookworm", "bookworm-updates"), ("bookworm-security",)]
    plan = plan_sources(machine_sources(tmp_path), codename="trixie", newer=("sid",))
    assert plan.own == ("trixie",)


def test_a_machine_that_follows_sid_by_its_alias() -> None:
    entry = parse_sources(f"deb {MIRROR} unstable main", deb822=False)
    plan = plan_sources(entry, codename="forky", newer=("experimental",))
    assert plan.own == ("unstable",)
    assert "Suites: experimental" in plan.text


def test_a_suite_that_is_there_already_is_not_named_twice() -> None:
    entry = parse_sources(f"deb {MIRROR} sid main", deb822=False)
    plan = plan_sources(entry, codename="sid", newer=("experimental", "sid"))
    assert [line for line in plan.text.splitlines() if line.startswith("Suites")] == [
        "Suites: sid",
        "Suites: experimental",
    ]


def test_no_entry_for_the_release(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="none of apt's source entries serves bookworm") as err:
        plan_sources(machine_sources(tmp_path), codename="bookworm", newer=("sid",))
    assert "sources.list.d" in err.value.hint


def test_codename() -> None:
    assert codename_of('PRETTY_NAME="Debian GNU/Linux 13"\nID=debian\nVERSION_CODENAME="trixie"\n') == "trixie"
    with pytest.raises(EnvironmentFailure, match="this system is Fedora Linux 42"):
        codename_of('ID=fedora\nPRETTY_NAME="Fedora Linux 42"\n')


def test_depends() -> None:
    groups = parse_depends("libc6 (>= 2.36), libfoo1 (= 1:2.0-1~x+b1) | libbar:any, python3:any (<< 4)\n")
    assert groups == (
        (Dependency(name="libc6", relation=">=", version="2.36"),),
        (Dependency(name="libfoo1", relation="=", version="1:2.0-1~x+b1"), Dependency(name="libbar")),
        (Dependency(name="python3", relation="<<", version="4"),),
    )
    assert parse_depends("") == ()


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("1:22.1.8-1~deb12u1", (22, 1, 8)),
        ("7.2.4+dfsg-1~exp1", (7, 2, 4)),
        ("6.0+git20231212.5a852ed-2", (6, 0)),
        ("5.7.1-6+deb13u1", (5, 7, 1)),
        ("git-1", ()),
    ],
)
def test_upstream(version: str, numbers: tuple[int, ...]) -> None:
    assert upstream(version) == numbers


def test_satisfies_compares_as_dpkg_does() -> None:
    if not shutil.which("dpkg"):
        require("dpkg")
    have = Available(name="x", version="7.2.4~rc1-1", suite="sid")
    assert not satisfies(have, Dependency(name="x", relation=">=", version="7.2.4"))
    assert satisfies(have, Dependency(name="x", relation=">=", version="7.2.0~"))
    assert satisfies(have, Dependency(name="x"))


def offers(*rows: str) -> list[Available]:
    """`name version suite` rows, newest first, as apt gives them."""
    return [
        Available(name=name, version=version, suite=suite) for name, version, suite in (row.split() for row in rows)
    ]


OWN = ("bookworm", "bookworm-security")
HIP = ("libamdhip64-dev 7.2.4-1~exp2 experimental", "libamdhip64-dev 6.4.3-5 sid", "libamdhip64-dev 5.2.3-8 sid")
LIBS = ("rocm-device-libs-21 7.0.2+dfsg-3 sid", "rocm-device-libs-22 7.2.4+dfsg-1~exp1 experimental")


@pytest.mark.parametrize(
    ("compilers", "hip", "libs", "chosen"),
    [
        (["clang-22 1:22.1.8-3 sid", "clang-22 1:22.1.8-1 bookworm-security"], HIP, LIBS, ("7.2.4-1~exp2", 22)),
        (["clang-21 1:21.1-1 bookworm"], HIP, LIBS, ("6.4.3-5", 21)),  # same suite, releases apart
        (["clang-21 1:21.1-1 bookworm", "clang-22 1:22.1-1 bookworm"], HIP, LIBS, ("7.2.4-1~exp2", 22)),
        (
            ["clang-22 1:22-1 bookworm", "clang-23 1:23-1 bookworm"],
            ["libamdhip64-dev 7.9.0-1 sid", *HIP],
            [*LIBS, "rocm-device-libs-23 7.9.1-1 experimental"],
            ("7.9.0-1", 23),
        ),
    ],
)
def test_the_newest_set_that_fits_is_chosen(
    compilers: list[str], hip: list[str], libs: list[str], chosen: tuple[str, int]
) -> None:
    choice = choose_set(hip=offers(*hip), device_libs=offers(*libs), compilers=offers(*compilers), own=OWN)
    assert (choice.hip.version, choice.llvm) == chosen
    assert choice.compiler.suite in OWN
    assert choice.device_libs.name == f"rocm-device-libs-{choice.llvm}"


@pytest.mark.parametrize(
    ("compilers", "hip"),
    [
        (["clang-22 1:22.1.8-3 sid"], HIP),  # a compiler of another release would want another glibc
        (["clang-15 1:15.0-1 bookworm"], HIP),
        (["clang-22 1:22.1-1 bookworm"], ["libamdhip64-dev 5.7.1-6 experimental"]),
        ([], []),
    ],
)
def test_no_set_says_what_there_is(compilers: list[str], hip: list[str]) -> None:
    with pytest.raises(EnvironmentFailure) as err:
        choose_set(hip=offers(*hip), device_libs=offers(*LIBS), compilers=offers(*compilers), own=OWN)
    assert "rocm-device-libs-22 7.2.4+dfsg-1~exp1 (experimental)" in err.value.message
    assert "security suite" in err.value.hint


# apt itself, on repositories made here


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """bookworm and sid, with a tool that needs liba, which needs libb: each a package of its own."""
    folder = tmp_path_factory.mktemp("repository")
    made = Repository(folder)
    for name, source, links in (
        ("libb.so.1", "int b(void) { return 7; }", []),
        ("liba.so.1", "int b(void); int a(void) { return b(); }", ["libb.so.1"]),
    ):
        text = folder / f"{name}.c"
        text.write_text(source)
        words = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../lib"]
        subprocess.run(["gcc", *words, "-o", folder / name, text, *(folder / link for link in links)], check=True)
    (folder / "tool.c").write_text("int a(void); int main(void) { return a(); }")
    words = ["-Wl,--enable-new-dtags,-rpath,$ORIGIN/../lib", f"-Wl,-rpath-link,{folder}"]
    subprocess.run(["gcc", "-o", folder / "tool", folder / "tool.c", folder / "liba.so.1", *words], check=True)
    triple = "usr/lib/x86_64-linux-gnu"
    made.add("tool", "1:1.0-1", {"usr/bin/tool": folder / "tool"}, "libc6 (>= 2), liba1 (>= 1) | other, data")
    made.add("liba1", "1.0", {f"{triple}/liba.so.1": folder / "liba.so.1"}, "libb1, perl")
    made.add("libb1", "2.0", {f"{triple}/libb.so.1": folder / "libb.so.1"})
    made.add("lonely", "1.0", {"usr/bin/lonely": folder / "tool"}, "libc6")
    good = made.key("good")
    made.key("other")
    for suite in ("bookworm", "sid"):
        made.publish(suite, good)
    made.publish("tampered", good)
    tampered = folder / "archive" / "dists" / "tampered" / "InRelease"
    tampered.write_text(tampered.read_text().replace("Origin: test", "Origin: else"))
    made.publish("unsigned", None)
    return made


def test_versions_and_packages_of_a_signed_archive(repository: Repository, tmp_path: Path) -> None:
    """With the key as a file and with the key inside the entry, which deb822 allows."""
    public = repository.folder / "good" / "public.asc"
    lines = [line or "." for line in public.read_text().splitlines()]
    embedded = "\n" + "\n".join(f" {line}" for line in lines)
    for number, signed_by in enumerate([str(public), embedded]):
        apt = repository.apt(tmp_path / str(number), repository.entry("bookworm", signed_by))
        apt.update()
        assert apt.names("lib") == ("liba1", "libb1")
        offered = apt.available(["tool", "absent"])
        assert offered["absent"] == ()
        assert {(package.version, package.suite) for package in offered["tool"]} == {
            ("1:1.0-1", "bookworm"),
            ("1:1.0-1", "sid"),
        }
        (package,) = apt.download([offered["tool"][0]], tmp_path / str(number) / "got")
        assert package.file.is_file()
        assert [group[0].name for group in package.depends] == ["libc6", "liba1", "data"]


@pytest.mark.parametrize(
    ("suite", "key"),
    [("unsigned", "good"), ("tampered", "good"), ("sid", "other")],
    ids=["unsigned", "tampered", "wrong-key"],
)
def test_what_the_key_did_not_sign_is_refused(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suite: str, key: str
) -> None:
    """Also where the machine's own settings would let it through, and although the entry says `Trusted: yes`."""
    lax = tmp_path / "lax.conf"
    lax.write_text('Acquire::AllowInsecureRepositories "true";\nAPT::Get::AllowUnauthenticated "true";\n')
    monkeypatch.setenv("APT_CONFIG", str(lax))
    entry = repository.entry("bookworm", str(repository.folder / key / "public.asc"))
    apt = repository.apt(tmp_path / "apt", entry, newer=(suite,))
    with pytest.raises(EnvironmentFailure) as err:
        apt.update()
    assert str(repository.folder) in err.value.message
    assert suite in err.value.message


def test_a_package_that_was_changed_is_refused(repository: Repository, tmp_path: Path) -> None:
    public = repository.folder / "good" / "public.asc"
    apt = repository.apt(tmp_path / "apt", repository.entry("bookworm", str(public)))
    apt.update()
    deb = repository.pool / "lonely_1.0_amd64.deb"
    data = deb.read_bytes()
    deb.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        with pytest.raises(EnvironmentFailure, match="could not be downloaded") as err:
            apt.download([apt.available(["lonely"])["lonely"][0]], tmp_path / "got")
    finally:
        deb.write_bytes(data)
    assert "lonely" in err.value.message


def test_a_mirror_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("apt-get"):
        require("apt-get")
    (tmp_path / "once.conf").write_text('Acquire::Retries "0";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "once.conf"))
    sources = Sources(
        own=("bookworm",),
        newer=(),
        text="Types: deb\nURIs: http://127.0.0.1:9/debian\nSuites: bookworm\nComponents: main\n",
    )
    with pytest.raises(EnvironmentFailure) as err:
        Apt(tmp_path, sources).update()
    assert "http://127.0.0.1:9/debian" in err.value.message
    assert "rocmbuild toolchain install" in err.value.hint
    assert err.value.exit_code == 3


def test_libraries_follow_by_need_and_run_without_an_environment(repository: Repository, tmp_path: Path) -> None:
    public = repository.folder / "good" / "public.asc"
    apt = repository.apt(tmp_path / "apt", repository.entry("bookworm", str(public)))
    apt.update()
    told: list[str] = []
    unpacked = Unpacked(apt, tmp_path / "packages", report=told.append)
    unpacked.add(list(apt.available(["tool"])["tool"][:1]))

    def choose(dependency: Dependency) -> Available | None:
        return next(iter(apt.available([dependency.name])[dependency.name]), None)

    tool = unpacked.root / "usr/bin/tool"
    tool.chmod(0o755)
    found = unpacked.closure([(tool, "tool")], choose=choose, provided=SYSTEM_LIBRARIES.__contains__)
    assert sorted(found) == ["liba.so.1", "libb.so.1"]
    assert sorted(unpacked.packages) == ["liba1", "libb1", "tool"]
    assert any(text.startswith("downloading liba1") for text in told)

    # the layout of a toolchain: liba's own dependency is found through the tool's path, LD_LIBRARY_PATH notwithstanding
    prefix = tmp_path / "moved here"
    for folder in ("bin", "lib", "wrong"):
        (prefix / folder).mkdir(parents=True)
    shutil.copy2(tool, prefix / "bin" / "tool")
    for soname, path in found.items():
        shutil.copy2(path, prefix / "lib" / soname)
    (prefix / "wrong" / "libb.so.1").write_text("not a library")
    for path in (prefix / "bin" / "tool", prefix / "lib" / "liba.so.1"):
        runpath_to_rpath(path)
    dynamic = read_dynamic(prefix / "bin" / "tool")
    assert dynamic is not None
    assert dynamic.runpath == "$ORIGIN/../lib"
    for environ in ({}, {"LD_LIBRARY_PATH": str(prefix / "wrong")}):
        done = subprocess.run([prefix / "bin" / "tool"], env=environ, check=False, capture_output=True, text=True)
        assert done.returncode == 7, done.stderr


def test_a_library_that_no_package_has_is_named(repository: Repository, tmp_path: Path) -> None:
    apt = repository.apt(tmp_path / "apt", repository.entry("bookworm", str(repository.folder / "good" / "public.asc")))
    apt.update()
    unpacked = Unpacked(apt, tmp_path / "packages", report=lambda text: None)
    unpacked.add(list(apt.available(["lonely"])["lonely"][:1]))
    with pytest.raises(
        EnvironmentFailure, match=r"no package of the suites in use has liba\.so\.1, which lonely needs"
    ):
        unpacked.closure(
            [(unpacked.root / "usr/bin/lonely", "lonely")],
            choose=lambda dependency: None,
            provided=SYSTEM_LIBRARIES.__contains__,
        )


def test_a_soname_can_be_shortened(repository: Repository, tmp_path: Path) -> None:
    path = tmp_path / "liba.so"
    shutil.copyfile(repository.folder / "liba.so.1", path)
    shorten_soname(path, "liba.so")
    dynamic = read_dynamic(path)
    assert dynamic is not None
    assert dynamic.soname == "liba.so"
    assert "libb.so.1" in dynamic.needed
    with pytest.raises(EnvironmentFailure, match="no SONAME that begins with libz"):
        shorten_soname(path, "libz")


def test_what_is_no_elf_file_has_no_needs(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("#!/bin/sh\n")
    assert read_dynamic(tmp_path / "text") is None
    (tmp_path / "broken").write_bytes(b"\x7fELF" + os.urandom(8))
    with pytest.raises(EnvironmentFailure, match="not a readable ELF file"):
        read_dynamic(tmp_path / "broken")
