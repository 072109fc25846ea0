"""The jobs of a build farm: targets x torch x toolchain, as CI services take them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from rocmbuild.config import Config
from rocmbuild.targets import TargetSet

__all__ = ["make_matrix"]


def make_matrix(
    config: Config, targets: TargetSet, *, torch: Sequence[str] = (), toolchains: Sequence[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """`{"include": [job, ...]}`, the form of GitHub's `strategy.matrix`; other services take the list.

    A job names its target, torch and toolchain ("" for what a build takes by itself) and, as `settings`, the words that
    `rocmbuild build` and pip take for it. torch, toolchains: in place of those of [tool.rocmbuild.matrix], which come
    before the project's torch-sdk and toolchain.
    """
    jobs = []
    for target in targets.names:
        for release in torch or config.matrix.torch or (config.torch_sdk or "",):
            for toolchain in toolchains or config.matrix.toolchains or (config.toolchain or "",):
                given = {"targets": target, "torch-sdk": release, "toolchain": toolchain}
                words = [word for name, value in given.items() if value for word in ("-C", f"{name}={value}")]
                job = {"target": target, "torch": release, "toolchain": toolchain}
                name = " ".join(value for value in job.values() if value)
                jobs.append({"name": name, **job, "settings": shlex.join(words)})
    return {"include": jobs}
