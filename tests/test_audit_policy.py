"""A project's rules for its kernels: read, held against real code objects, and enforced by a build."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audit_samples import Samples
from support import PROJECTS, needs_toolchain, needs_torch_sdk

from rocmbuild import pipeline
from rocmbuild.audit.binary import inspect
from rocmbuild.audit.disassembly import base_name, disassemble, parse
from rocmbuild.audit.finding import Finding
from rocmbuild.audit.policy import judge_policy
from rocmbuild.audit.report import audit
from rocmbuild.cli import main
from rocmbuild.config import AuditRule, load_config
from rocmbuild.errors import CheckError, EnvironmentFailure, InputError
from rocmbuild.toolchain.model import Toolchain


@pytest.fixture(scope="module")
def samples(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("policy"), toolchain)


# The configuration


def rules_of(tmp_path: Path, text: str) -> tuple[AuditRule, ...]:
    (tmp_path / "pyproject.toml").write_text(text)
    return load_config(tmp_path, environ={}, want_targets=False).audit


def test_rules_are_read(tmp_path: Path) -> None:
    text = """
[tool.rocmbuild.audit]
allow-targets = ["rdna4", "gfx11-generic"]
wave = 32
scratch = false

[[tool.rocmbuild.audit.rules]]
kernels = "gguf::mul_mat*"
targets = ["gfx12*"]
max-vgprs = 96
min-occupancy = 12
spills = false
require = "v_dot4_i32_iu8"
forbid = ["v_*_f64*", "scratch_*"]
"""
    assert rules_of(tmp_path, text) == (
        AuditRule(
            at="tool.rocmbuild.audit", allow_targets=("gfx1200", "gfx1201", "gfx11-generic"), wave=32, scratch=False
        ),
        AuditRule(
            at="tool.rocmbuild.audit.rules[0]",
            kernels=("gguf::mul_mat*",),
            targets=("gfx12*",),
            max_vgprs=96,
            min_occupancy=12,
            spills=False,
            require=("v_dot4_i32_iu8",),
            forbid=("v_*_f64*", "scratch_*"),
        ),
    )
    assert rules_of(tmp_path, "") == ()
    assert rules_of(tmp_path, "[tool.rocmbuild.audit]") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.rocmbuild]\naudit = 3", "tool.rocmbuild.audit: found 3, wanted a table"),
        ("[tool.rocmbuild.audit]\nwaves = 32", "tool.rocmbuild.audit.waves: no such key; did you mean wave?"),
        ("[tool.rocmbuild.audit]\nwave = 16", "tool.rocmbuild.audit.wave: found 16, wanted 32 or 64"),
        ("[tool.rocmbuild.audit]\nwave = true", "wave: found true, wanted 32 or 64"),
        ("[tool.rocmbuild.audit]\nmax-vgprs = 0", "max-vgprs: found 0, wanted a whole number of at least 1"),
        ("[tool.rocmbuild.audit]\nspills = 'no'", 'spills: found "no", wanted true or false'),
        ("[tool.rocmbuild.audit]\nallow-targets = ['rdna7']", "did you mean"),
        ("[tool.rocmbuild.audit]\nforbid = ['V_ADD F64']", "wanted the name of an instruction or a pattern"),
        ("[tool.rocmbuild.audit]\nrules = {}", "write [[tool.rocmbuild.audit.rules]]"),
        ("[[tool.rocmbuild.audit.rules]]\nwave = 32", "rules[0].kernels: missing"),
        ("[[tool.rocmbuild.audit.rules]]\nkernels = 'a*'", "rules[0]: limits nothing; wanted one of allow-targets"),
        ("[[tool.rocmbuild.audit.rules]]\nkernels = []\nwave = 32", "wanted at least one pattern"),
        ("[tool.rocmbuild.audit]\nkernels = 'a'", "tool.rocmbuild.audit.kernels: no such key"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        rules_of(tmp_path, text)
    assert words in caught.value.message


# Against code objects


def judged(samples: Samples, *paths: Path, objdump: bool = True, **limits: Any) -> list[Finding]:
    rule = AuditRule(at="tool.rocmbuild.audit.rules[0]", **limits)
    tool = samples.tool("llvm-objdump") if objdump else None
    return judge_policy([rule], [inspect(path) for path in paths], objdump=tool)


def test_every_violation_names_kernel_target_found_and_allowed(samples: Samples) -> None:
    code = samples.code("gfx1201")
    (scratch,) = judged(samples, code, kernels=("scratch_*",), scratch=False)
    assert (scratch.severity, scratch.rule, scratch.where) == ("error", "policy-scratch", str(code))
    assert scratch.message == (
        "scratch_plain for gfx1201: 176 bytes of scratch; allowed: none (tool.rocmbuild.audit.rules[0].scratch)"
    )
    assert judged(samples, code, kernels=("plain", "sample::*"), scratch=False) == []
    (wide,) = judged(samples, samples.code("gfx1201", "-mwavefrontsize64"), kernels=("plain",), wave=32)
    assert "plain for gfx1201: wave64; allowed: wave32" in wide.message
    (narrow,) = judged(samples, code, kernels=("plain",), wave=64)
    assert "wave32; allowed: wave64" in narrow.message
    found = judged(samples, code, max_vgprs=1)
    assert {finding.rule for finding in found} == {"policy-vgprs"}
    assert "VGPRs; allowed: at most 1 (tool.rocmbuild.audit.rules[0].max-vgprs)" in found[0].message
    assert judged(samples, code, max_vgprs=256) == []


def test_occupancy_and_spills(samples: Samples) -> None:
    report = inspect(samples.code("gfx1201"))
    (code,) = report.libraries[0].code_objects
    heavy = [kernel._replace(vgpr=200, vgpr_allocated=200, vgpr_spill=3, sgpr_spill=1) for kernel in code.kernels[:1]]
    library = replace(report.libraries[0], code_objects=(replace(code, kernels=tuple(heavy)),))
    report = replace(report, libraries=(library,))
    rule = AuditRule(at="r", min_occupancy=8, spills=False)
    messages = [finding.message for finding in judge_policy([rule], [report])]
    assert any("3 VGPRs and 1 SGPRs spilled; allowed: none (r.spills)" in text for text in messages)
    assert any(
        "7 waves a SIMD (limited by VGPR); allowed: at least 8 (r.min-occupancy)" in text for text in messages
    ), messages
    odd = replace(library, code_objects=(replace(library.code_objects[0], processor="gfx9999"),))
    (_, unknown) = judge_policy([rule], [replace(report, libraries=(odd,))])
    assert "an occupancy that is not known" in unknown.message


def test_targets_of_a_rule_and_targets_that_may_be(samples: Samples) -> None:
    both = [samples.code("gfx1201"), samples.code("gfx1100")]
    found = judged(samples, *both, kernels=("plain",), allow_targets=("gfx12*",))
    assert ["gfx1100; allowed: gfx12*" in finding.message for finding in found] == [True]
    found = judged(samples, *both, targets=("gfx11*",), max_vgprs=1)
    assert all("for gfx1100:" in finding.message for finding in found)
    (unmatched,) = judged(samples, *both, kernels=("no_such", "other"), targets=("gfx11*",), max_vgprs=1)
    assert (unmatched.rule, unmatched.severity) == ("policy-unmatched", "error")
    assert "no kernel is named no_such or other for gfx11*" in unmatched.message


def test_the_same_violation_of_several_targets_is_one_finding(samples: Samples) -> None:
    unit = samples.make("pair.o", "--offload-arch=gfx1100", "--offload-arch=gfx1101", kernel="pair")
    (found,) = judged(samples, samples.shared("pair.so", unit), kernels=("pair",), wave=64)
    assert "pair for gfx1100, gfx1101: wave32; allowed: wave64" in found.message


def test_instructions(samples: Samples) -> None:
    """Must and must not, with and without the suffix of the encoding, in libraries with compressed bundles too."""
    unit = samples.make(
        "words.o", "--offload-arch=gfx1201", "--offload-arch=gfx1100", "--offload-compress", kernel="words"
    )
    library = samples.shared("words.so", unit)
    assert judged(samples, library, kernels=("sample::scale<float>",), require=("ds_load*", "v_mul_f32")) == []
    found = judged(samples, library, kernels=("sample::scale<*>",), forbid=("v_mul_*",))
    assert [finding.rule for finding in found] == ["policy-instructions"] * 2
    assert "sample::scale<float> for gfx1100, gfx1201: v_" in found[0].message
    assert "allowed: no v_mul_* (tool.rocmbuild.audit.rules[0].forbid)" in found[0].message
    (missing,) = judged(samples, library, kernels=("words",), require=("v_dot4_i32_iu8",))
    assert "words for gfx1100, gfx1201: no v_dot4_i32_iu8; allowed: only with v_dot4_i32_iu8" in missing.message
    with pytest.raises(EnvironmentFailure, match="there is no llvm-objdump"):
        judged(samples, library, require=("v_*",), objdump=False)
    tool = samples.folder / "refuses"
    tool.write_text("#!/bin/sh\necho error: no such processor >&2\nexit 1\n")
    tool.chmod(0o755)
    with pytest.raises(CheckError, match=r"refuses does not disassemble it .*no such processor"):
        disassemble(library, [f"{library}(gfx1201)#0"], tool)


def test_the_words_of_a_disassembly() -> None:
    text = """
a.co:\tfile format elf64-amdgpu

Disassembly of section .text:

0000000000001900 <kernel>:
\ts_load_b64 s[0:1], s[2:3], 0x0                             // 000000001900: F4004001 F8000000
\tv_dual_mov_b32 v0, v1 :: v_dual_add_f32 v2, v3, v4         // 000000001908: CA100101
\tv_mul_f32_e64_dpp v0, v1, v2 quad_perm:[1,0,3,2]
\ts_endpgm

0000000000001a00 <helper>:
\tv_fma_f64 v[0:1], v[2:3], v[4:5], v[6:7]
"""
    found = parse(text.splitlines(), ["kernel"])
    own = {"s_load_b64", "v_dual_mov_b32", "v_dual_add_f32", "v_mul_f32_e64_dpp", "s_endpgm"}
    assert found.kernels == {"kernel": own}
    assert found.of("kernel") == own | {"v_fma_f64"}
    assert base_name("v_mul_f32_e64_dpp") == "v_mul_f32"
    assert base_name("v_add_f32_e32") == "v_add_f32"
    assert base_name("v_mov_b32") == "v_mov_b32"


def test_functions_that_a_kernel_may_call_count_for_it(samples: Samples) -> None:
    source = samples.folder / "calls.hip"
    source.write_text(
        "#define __global__ __attribute__((global))\n#define __device__ __attribute__((device))\n"
        '__device__ __attribute__((noinline)) double helper(double a) { asm volatile(""); return a * a; }\n'
        'extern "C" __global__ void caller(double *p) { p[0] = helper(p[1]); }\n'
    )
    out = samples.folder / "calls.co"
    words = ("--offload-arch=gfx1201", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib")
    samples.run(samples.toolchain.clang, "-x", "hip", "-c", source, "-o", out, "-O1", *words)
    (found,) = judged(samples, out, kernels=("caller",), forbid=("v_mul_f64",))
    assert "caller for gfx1201: v_mul_f64" in found.message


# In a build and on the command line


def test_the_audit_takes_rules(samples: Samples, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = samples.code("gfx1201")
    report = audit([code], targets=["gfx1201"], rules=[AuditRule(at="r", scratch=False)])
    assert [finding.rule for finding in report.findings if finding.severity == "error"] == ["policy-scratch"]
    (tmp_path / "pyproject.toml").write_text("[tool.rocmbuild.audit]\nscratch = false\nforbid = 'v_mul_f32'\n")
    for given in (tmp_path, tmp_path / "pyproject.toml"):
        assert main(["audit", str(code), "--policy", str(given)]) == 1
        text = " ".join(capsys.readouterr().out.split())
        assert "scratch_plain for gfx1201: 176 bytes of scratch; allowed: none" in text
        assert "[policy-instructions]" in text
    (tmp_path / "pyproject.toml").write_text("")
    assert main(["audit", str(code), "--policy", str(tmp_path)]) == 2
    assert "so there is no policy" in capsys.readouterr().err


@needs_toolchain
@needs_torch_sdk
def test_a_build_that_breaks_its_own_rules_is_refused(tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "p")
    project = tmp_path / "p/pyproject.toml"
    text = project.read_text()
    rule = '\n[[tool.rocmbuild.audit.rules]]\nkernels = "*saxpy*"\nmax-vgprs = 1\nrequire = "v_dot4_i32_iu8"\n'
    project.write_text(text + rule)

    def build() -> pipeline.Built:
        given = {"build-dir": str(tmp_path / "b"), "platforms": "rocm"}
        config = load_config(tmp_path / "p", settings=given, environ={})
        return pipeline.build_wheel(config, tmp_path / "dist", dict(os.environ))

    with pytest.raises(CheckError, match="the audit refuses this wheel") as caught:
        build()
    message = caught.value.message
    assert "for gfx1201: " in message
    assert "VGPRs; allowed: at most 1 (tool.rocmbuild.audit.rules[0].max-vgprs) [policy-vgprs]" in message
    assert "no v_dot4_i32_iu8; allowed: only with v_dot4_i32_iu8" in message
    assert not (tmp_path / "dist").exists()
    project.write_text(text + rule.replace("max-vgprs = 1\n", "max-vgprs = 256\n").replace("dot4_i32_iu8", "*"))
    assert build().path.is_file()
