"""Every rule that an audit's findings name: what it holds and what to do. One table for pages, SARIF and readers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["RULES"]

RULES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        # commands
        "command-failed": ("A recorded command succeeds", "look at what it printed"),
        "environment": ("Variables that compilers read are well formed", "unset or correct the variable"),
        "flag-missing": ("-mno-wavefrontsize64 stands in every device compilation", "add the flag"),
        "kind-mismatch": ("A command does what its record says", "build again with this version of rocmbuild"),
        "no-optimisation": ("Device code is compiled with optimisation", "add -O3; clang adds none by itself"),
        "not-understood": ("Every line that speaks of HIP can be judged", "look at the line yourself"),
        "rdc": ("Relocatable device code is linked with --hip-link", "link with hipcc or --hip-link"),
        "response-file": ("Response files can be read", "keep them until the audit, or audit where they are"),
        "target-default": ("Every device compilation names its target", "add --offload-arch"),
        "target-empty": ("No target is empty", "look where the empty --offload-arch= comes from"),
        "target-not-fixed": ("Targets do not depend on the machine", "name the target in place of native"),
        "target-old-spelling": ("Targets are written as --offload-arch", "write --offload-arch"),
        "target-override": ("No option changes the processor behind the driver's back", "remove -Xclang -target-cpu"),
        "word-unknown": ("Every option that may decide is known", "look at what it does to targets and waves"),
        # what was asked for, compiled and emitted
        "not-emitted": ("The binaries are audited with the commands", "give the wheel or library too"),
        "not-recorded": ("The commands are audited with the binaries", "give the record or the build's log too"),
        "not-requested": ("What was asked for is known", "give it with --targets"),
        "target-extra": ("Nothing is compiled or shipped for a target that was not asked for", "remove the target"),
        "target-mismatch": ("All that names a code object's target says the same", "build it again"),
        "target-missing": ("Every unit is compiled and shipped for each target asked for", "add the target"),
        "wave64": ("All kernels have waves of 32 lanes", "look for -mwavefrontsize64 and for gfx9 targets"),
        "evidence-differs": ("A wheel holds what its evidence says", "build the wheel again"),
        # binaries
        "descriptor-missing": ("Each kernel has a descriptor", "build it again; a tool has damaged it"),
        "digest-mismatch": ("A bundle's content has its digest", "build it again; the file is damaged"),
        "entry-unknown": ("Bundle entries are for AMD processors", "see whether the entry belongs there"),
        "fatbin-missing": ("A library that registers a fat binary has it", "do not strip or rename .hip_fatbin"),
        "kernel-sets": ("Every target has the same kernels", "see why a kernel is left out for a target"),
        "no-sections": ("Section headers are there", "do not strip section headers"),
        "not-linked": ("Device code is linked", "link with --hip-link"),
        "rdc-not-linked": ("Relocatable device code is linked with --hip-link", "link with hipcc or --hip-link"),
        "wave-mismatch": ("Metadata and descriptor name one wave width", "build it again; a tool has changed it"),
        # the project's own rules
        "policy-instructions": ("Instructions are as the project allows", "see [tool.rocmbuild.audit]"),
        "policy-occupancy": ("Occupancy is as the project allows", "see [tool.rocmbuild.audit]"),
        "policy-scratch": ("Scratch memory is as the project allows", "see [tool.rocmbuild.audit]"),
        "policy-spills": ("Spilled registers are as the project allows", "see [tool.rocmbuild.audit]"),
        "policy-target": ("Targets are as the project allows", "see [tool.rocmbuild.audit]"),
        "policy-unmatched": ("Each rule is about a kernel that is there", "correct the pattern in the rule"),
        "policy-vgprs": ("VGPRs are as the project allows", "see [tool.rocmbuild.audit]"),
        "policy-wave": ("Wave widths are as the project allows", "see [tool.rocmbuild.audit]"),
        # the question of --for
        "card-not-served": ("The card that was asked about can run the file", "build for its target"),
    }
)
"""Rule -> (what holds where nothing is found, the next step)."""
