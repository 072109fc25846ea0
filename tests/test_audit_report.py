"""The three lists - asked for, compiled, emitted - over a small build whose commands really ran."""

from __future__ import annotations

import copy
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from audit_samples import WITHOUT_HEADERS, Samples

from rocmbuild.audit.record import parse_record, read_record
from rocmbuild.audit.report import AuditReport, audit, audit_paths
from rocmbuild.audit.table import to_table
from rocmbuild.errors import InputError
from rocmbuild.toolchain.model import Toolchain

TARGETS = ("gfx1201", "gfx1100")
LIBRARY = "pkg/lib/ops_rocm.so"
HOST_LIBRARY = "pkg/lib/ops_host.so"


class Build:
    """A build folder: two units, each compiled per target, bundled and embedded, linked; all recorded."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.folder = samples.folder
        self.commands: list[dict[str, Any]] = []
        clang, bundler = str(samples.toolchain.clang), str(samples.toolchain.bundler)
        objects = []
        for name in ("one", "two"):
            samples.make(f"{name}.o.ready", "--offload-arch=gfx1201", kernel=name)  # writes the source
            shared = ["-x", "hip", "-O3", "-fPIC", *WITHOUT_HEADERS]
            codes = []
            for target in TARGETS:
                code = f"{name}.{target}.co"
                argv = [clang, "-c", f"{name}.hip", "-o", code, "--offload-device-only", "--no-gpu-bundle-output"]
                argv += [f"--offload-arch={target}", "-mno-wavefrontsize64", *shared]
                self.run("device", argv, source=f"{name}.cu", target=target, output=code)
                codes.append(code)
            ids = ",".join(["host-x86_64-unknown-linux-gnu-", *(f"hipv4-amdgcn-amd-amdhsa--{t}" for t in TARGETS)])
            argv = [bundler, "-type=o", "-bundle-align=4096", "-compress", f"-targets={ids}", "-input=/dev/null"]
            argv += [*(f"-input={code}" for code in codes), f"-output={name}.hipfb"]
            self.run("bundle", argv, source=f"{name}.cu", output=f"{name}.hipfb")
            argv = [clang, "-c", f"{name}.hip", "-o", f"{name}.o", "--offload-host-only", *shared]
            argv += ["-Xclang", "-fcuda-include-gpubinary", "-Xclang", f"{name}.hipfb"]
            self.run("host", argv, source=f"{name}.cu", output=f"{name}.o")
            objects.append(f"{name}.o")
        (self.folder / "lib/pkg/lib").mkdir(parents=True)
        self.run("link", ["c++", "-shared", "-o", f"lib/{LIBRARY}", *objects], output=f"lib/{LIBRARY}")
        (self.folder / "cpu.cpp").write_text("int cpu() { return 1; }\n")
        argv = ["c++", "-shared", "-fPIC", "-x", "c++", "cpu.cpp", "-o", f"lib/{HOST_LIBRARY}"]
        self.run("link", argv, output=f"lib/{HOST_LIBRARY}", platform="host")

    def run(
        self,
        kind: str,
        argv: list[str],
        *,
        output: str,
        source: str | None = None,
        target: str | None = None,
        platform: str = "rocm",
    ) -> None:
        self.samples.run(*argv)
        row = {"kind": kind, "platform": platform, "extension": "pkg.lib.ops", "target": target, "source": source}
        self.commands.append({**row, "output": output, "argv": argv, "env": {}, "exit": 0, "seconds": 0.1})

    @property
    def record(self) -> dict[str, Any]:
        return {
            "format": 1,
            "targets": list(TARGETS),
            "targets_source": "-C targets",
            "platforms": ["rocm", "host"],
            "toolchain": {},
            "stage": {"key": "a1b2"},
            "build_dir": str(self.folder),
            "commands": copy.deepcopy(self.commands),
        }

    @property
    def libraries(self) -> list[Path]:
        return [self.folder / "lib" / name for name in (HOST_LIBRARY, LIBRARY)]

    def evidence(self) -> dict[str, Any]:
        """What a wheel says about itself: no folder, no times, its code objects."""
        value = self.record
        del value["build_dir"]
        for command in value["commands"]:
            if command["argv"][0] == "c++":
                command["argv"][0] = "{cxx}"
            del command["output"], command["seconds"], command["exit"]
        value["code_objects"] = audit(self.libraries, record=self.record).summary()
        return value

    def wheel(self, path: Path, evidence: dict[str, Any] | None = None, **changed: bytes | None) -> Path:
        """The wheel, its device library replaced (library=...) or left out (library=None)."""
        members: dict[str, bytes | None] = {
            p.relative_to(self.folder / "lib").as_posix(): p.read_bytes() for p in self.libraries
        }
        if "library" in changed:
            members[LIBRARY] = changed["library"]
        with zipfile.ZipFile(path, "w") as file:
            for name, data in members.items():
                if data is not None:
                    file.writestr(name, data)
            text = json.dumps(self.evidence() if evidence is None else evidence)
            file.writestr("pkg-1.dist-info/rocmbuild.json", text)
        return path


@pytest.fixture(scope="module")
def build(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Build:
    return Build(Samples(tmp_path_factory.mktemp("build"), toolchain))


@pytest.fixture
def name(tmp_path: Path) -> Path:
    return tmp_path / "pkg-1-py3-none-linux_x86_64.whl"


def errors(report: AuditReport) -> dict[str, list[str]]:
    """Rules of the errors, each with the places it is about."""
    found: dict[str, list[str]] = {}
    for finding in report.findings:
        if finding.severity == "error":
            found.setdefault(finding.rule, []).append(finding.where)
    return found


def test_three_equal_lists(build: Build, name: Path) -> None:
    report = audit([build.wheel(name)], record=build.record, targets=TARGETS)
    assert report.findings == ()
    assert report.ok
    assert report.requested == report.compiled.targets == report.emitted == TARGETS
    assert (report.requested_source, report.compiled.source) == ("-C targets", "record")
    assert (report.compiled.device_commands, report.compiled.commands) == (4, 10)
    (library,) = report.binaries[0].device_libraries
    assert library.name == LIBRARY
    assert [len(code.kernels) for code in library.code_objects] == [4, 4, 4, 4]
    assert {kernel.wave for code in library.code_objects for kernel in code.kernels} == {32}


def test_the_same_from_the_build_folder_and_from_the_evidence_alone(build: Build, name: Path) -> None:
    loose = audit(build.libraries, record=build.record, targets=TARGETS)
    alone = audit([build.wheel(name)])
    for report in (loose, alone):
        assert (report.findings, report.requested, report.emitted) == ((), TARGETS, TARGETS)
    assert alone.compiled.source == "evidence"
    assert alone.summary() == loose.summary()
    assert str(build.folder) not in json.dumps(alone.summary())


def test_a_record_alone(build: Build, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(build.record))
    for given in (path, tmp_path):
        report = audit_paths([given])
        assert report.ok
        assert [finding.rule for finding in report.findings] == ["not-emitted"]
        assert report.compiled.targets == TARGETS


def test_no_record_is_said_and_not_taken_for_good(build: Build, name: Path) -> None:
    report = audit_paths([build.libraries[1]], targets=TARGETS)
    assert report.ok
    assert [finding.rule for finding in report.findings] == ["not-recorded"]
    assert report.to_json()["compiled"]["source"] == "not recorded"
    assert "compiled   not recorded" in to_table(report)
    evidence = {**build.evidence(), "commands": []}
    report = audit([build.wheel(name, evidence)])
    assert [finding.rule for finding in report.findings] == ["not-recorded"]


def test_nothing_asked_for(build: Build) -> None:
    report = audit_paths([build.libraries[1]])
    assert report.requested is None
    assert {finding.rule for finding in report.findings} == {"not-requested", "not-recorded"}
    assert "audit: nothing was asked for, 16 kernels in 4 code objects, wave32" in to_table(report)


def test_a_wheel_for_other_targets_than_asked(build: Build, name: Path) -> None:
    report = audit_paths([build.wheel(name)], targets=["gfx1201", "gfx1151"])
    found = errors(report)
    assert found["target-missing"].count(LIBRARY) == 1
    assert found["target-extra"].count(LIBRARY) == 1
    assert found["evidence-differs"] == [name.name]
    assert {"one.cu", "two.cu"} <= set(found["target-missing"])  # no command compiles for gfx1151


def test_a_unit_that_lacks_a_target(build: Build, name: Path) -> None:
    """The library has both targets, one bundle in it has not: a kernel would be missing at run time."""
    whole = build.samples.make("whole.o", *(f"--offload-arch={t}" for t in TARGETS), kernel="whole")
    part = build.samples.make("part.o", "--offload-arch=gfx1201", kernel="part")
    library = build.samples.shared("part.so", whole, part)
    report = audit([library], targets=TARGETS)
    assert errors(report) == {"target-missing": [str(library)]}
    assert "no code for gfx1100" in str(report.findings[0])
    assert "kernel-sets" in {finding.rule for finding in report.findings}


def test_wave64_code(build: Build) -> None:
    wide = build.samples.code("gfx1201", "-mwavefrontsize64")
    report = audit([wide], targets=["gfx1201"])
    assert list(errors(report)) == ["wave64"]
    assert "4 of 4 kernels for gfx1201 are wave64" in str(report.findings[0])
    assert [f.severity for f in audit([wide]).findings if f.rule == "wave64"] == ["warning"]


def test_a_wheel_whose_library_was_changed(build: Build, name: Path) -> None:
    other = build.samples.shared("other.so", build.samples.make("o.o", *(f"--offload-arch={t}" for t in TARGETS)))
    report = audit([build.wheel(name, library=other.read_bytes())], record=build.record)
    assert list(errors(report)) == ["evidence-differs"]


def test_a_wheel_without_its_library(build: Build, name: Path) -> None:
    report = audit([build.wheel(name, library=None)], record=build.record)
    assert errors(report)["target-missing"] == [name.name]
    plain = build.libraries[0].read_bytes()
    report = audit([build.wheel(name, library=plain)], record=build.record)
    assert name.name in errors(report)["target-missing"]
    # loose, a library without device code where another has it
    target = build.folder / "x" / LIBRARY
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(plain)
    report = audit([target, build.samples.code("gfx1201")], record=build.record, targets=["gfx1201"])
    assert str(target) in errors(report)["target-missing"]


def test_a_wheel_of_another_build(build: Build, name: Path) -> None:
    record = {**build.record, "stage": {"key": "ffff"}}
    report = audit([build.wheel(name)], record=record)
    assert list(errors(report)) == ["evidence-differs"]
    assert "made from stage a1b2, the record is of ffff" in report.findings[0].message


def test_a_host_wheel_has_no_device_code(build: Build, name: Path) -> None:
    evidence = build.evidence()
    evidence |= {"targets": [], "platforms": ["host"], "code_objects": None}
    evidence["commands"] = [command for command in evidence["commands"] if command["platform"] == "host"]
    assert audit([build.wheel(name, evidence, library=None)]).ok
    report = audit([build.wheel(name, evidence)])
    assert errors(report) == {"target-extra": [name.name]}


def changed(build: Build, number: int, **fields: Any) -> dict[str, Any]:
    record = build.record
    record["commands"][number] |= fields
    return record


def test_commands_that_are_not_what_was_asked(build: Build) -> None:
    """Each fault of a record by its rule and the command it is about."""
    device = build.commands[0]["argv"]

    def found(number: int, **fields: Any) -> dict[str, list[str]]:
        return errors(audit(build.libraries, record=changed(build, number, **fields)))

    where = ["one.cu for gfx1201"]
    assert found(0, exit=1) == {"command-failed": where}
    wide = [*device, "-mwavefrontsize64"]
    assert found(0, argv=wide) == {"wave64": where}
    bare = [word for word in device if word != "-mno-wavefrontsize64"]
    assert found(0, argv=bare) == {"flag-missing": where}
    assert found(0, env={"CCC_OVERRIDE_OPTIONS": "# +--offload-arch=gfx942"}) == {
        "wave64": where,
        "target-extra": where,
    }
    swapped = [word.replace("gfx1201", "gfx1100") for word in device]
    assert found(0, argv=swapped) == {"target-mismatch": where, "target-missing": ["one.cu"]}
    host = [*device, "--offload-host-only"]
    assert found(0, argv=host) == {"kind-mismatch": where, "target-missing": ["one.cu"]}
    bundle = [word.replace("--gfx1100", "--gfx1102") for word in build.commands[2]["argv"]]
    assert found(2, argv=bundle) == {"target-extra": ["one.cu"], "target-missing": ["one.cu"]}
    sneaked = ["clang++", "-x", "hip", "-c", "a.hip", "--offload-arch=gfx1201,gfx1100", "-mno-wavefrontsize64", "-O3"]
    assert set(found(9, argv=sneaked)) == {"kind-mismatch"}


def test_a_record_without_device_commands(build: Build) -> None:
    record = build.record
    record["commands"] = record["commands"][-2:]
    assert errors(audit([], record=record)) == {"target-missing": ["the record of this build"]}


def test_rdc_without_the_device_link(build: Build) -> None:
    words = ["hipcc", "-fgpu-rdc", "-c", "a.hip", "-o", "a.o", "--offload-arch=gfx1201", "-mno-wavefrontsize64"]
    commands = [{"argv": words}, {"argv": ["c++", "-shared", "a.o", "-o", "lib.so"]}]
    record = {"format": 1, "targets": ["gfx1201"], "commands": commands}
    assert errors(audit([], record=record)) == {"rdc-not-linked": ["lib.so"]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "format: found None, wanted 1"),
        ({"format": 2}, "format: found 2"),
        ({"format": 1}, "targets: found None, wanted a list of strings"),
        ({"format": 1, "targets": ["a"], "commands": {}}, "commands: found dict, wanted a list"),
        ({"format": 1, "targets": ["a"], "commands": [3]}, "commands[0]: found 3, wanted an object"),
        ({"format": 1, "targets": [1], "commands": [{"argv": "cc"}]}, "commands[0].argv: found 'cc'"),
        ({"format": 1, "targets": [], "commands": [{"argv": ["cc"], "env": {"A": 1}}]}, "commands[0].env"),
        ({"format": 1, "targets": [], "commands": [{"argv": ["cc"], "exit": "no"}]}, "commands[0].exit: found 'no'"),
        ({"format": 1, "targets": [], "commands": [{"argv": []}]}, "commands[0].argv: empty"),
        ({"format": 1, "targets": [], "stage": {"key": 1}}, "stage.key: found 1, wanted a string"),
    ],
)
def test_records_of_another_shape(value: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=r"^r\.json: ") as caught:
        parse_record(value, where="r.json")
    assert words in caught.value.message


def test_records_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"record\.json: cannot be read"):
        read_record(tmp_path)
    for text, words in (("{", "not JSON"), ("[]", "no compiler command"), ("\udc80", "not JSON")):
        (tmp_path / "r.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(InputError, match=words):
            audit_paths([tmp_path / "r.json"])
    (tmp_path / "r.json").write_text('{"format": 1, "targets": []}')
    (tmp_path / "record.json").write_text('{"format": 1, "targets": []}')
    with pytest.raises(InputError, match="2 records"):
        audit_paths([tmp_path, tmp_path / "r.json"])
    with pytest.raises(InputError, match="nothing to audit"):
        audit_paths([])


def test_json_is_stable(build: Build, name: Path) -> None:
    """The same input gives the same bytes, in a documented order of keys."""
    build.wheel(name)
    texts = {json.dumps(audit_paths([name]).to_json()) for _ in range(2)}
    (text,) = texts
    value = json.loads(text)
    assert list(value) == [
        "format",
        "ok",
        "requested",
        "compiled",
        "emitted",
        "served",
        "findings",
        "files",
        "commands",
    ]
    assert value["requested"] == {"targets": list(TARGETS), "source": "-C targets"}
    assert value["emitted"]["libraries"] == {LIBRARY: sorted(TARGETS)}
    (library,) = [lib for lib in value["files"][0]["libraries"] if lib["name"] == LIBRARY]
    kernel = library["code_objects"][0]["kernels"][0]
    assert list(kernel)[:3] == ["name", "demangled", "wave"]
    assert [command["ok"] for command in value["commands"]] == [True] * 6


def test_names_cannot_write_to_the_terminal(build: Build, name: Path) -> None:
    evil = build.samples.code("gfx1201").read_bytes().replace(b"plain", b"\x1b[2Jx")
    with zipfile.ZipFile(name, "w") as wheel:
        wheel.writestr("\x1b[31mred.co", evil)
    text = to_table(audit_paths([name], targets=["gfx1100"]))
    assert "\x1b" not in text
    assert "\\x1b[31mred.co" in text


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits(width: int, build: Build, name: Path) -> None:
    text = to_table(audit_paths([build.wheel(name), build.samples.code("gfx1201", "-mwavefrontsize64")]), width)
    assert [line for line in text.splitlines() if len(line) > width and " " in line.strip()] == []
    assert "requested  gfx1201 gfx1100  (-C targets)" in text
    assert "sample::scale<float>" in text
    assert "2 bundles (zstd v3)" in text
    assert text.splitlines()[-1].startswith("audit: 2 errors, 20 kernels in 5 code objects, wave32/64")
