"""The audit's forms: JSON by its schema, Markdown, SARIF, the page in a real browser, the difference of two files."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from audit_samples import Samples
from hypothesis import given
from hypothesis import strategies as st
from support import require

from rocmbuild.audit import markdown as markdown_module
from rocmbuild.audit.binary import inspect
from rocmbuild.audit.diff import diff
from rocmbuild.audit.diff import to_table as diff_table
from rocmbuild.audit.logs import parse_log
from rocmbuild.audit.markdown import to_markdown
from rocmbuild.audit.page import to_page
from rocmbuild.audit.report import AuditReport, audit
from rocmbuild.audit.rules import RULES
from rocmbuild.audit.scanning import to_sarif
from rocmbuild.audit.table import to_table
from rocmbuild.cli import main
from rocmbuild.config import AuditRule
from rocmbuild.toolchain.model import Toolchain

HIP = "hipcc -c a.hip -o a.o --offload-arch=gfx1201,gfx942 -mno-wavefrontsize64 -O3\n"


@pytest.fixture(scope="module")
def samples(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("output"), toolchain)


@pytest.fixture(scope="module")
def library(samples: Samples) -> Path:
    unit = samples.make("k.o", "--offload-arch=gfx1201", "--offload-arch=gfx1100", "--offload-compress", kernel="k")
    return samples.shared("k.so", unit)


@pytest.fixture(scope="module")
def report(samples: Samples, library: Path) -> AuditReport:
    """Findings of every kind: a log's, a binary's, a policy's, a card that is not served."""
    rule = AuditRule(at="tool.rocmbuild.audit", scratch=False, max_vgprs=256)
    wide = samples.code("gfx1201", "-mwavefrontsize64")
    logs = [parse_log(HIP, name="build.log")]
    return audit([library, wide], logs=logs, targets=["gfx1201", "gfx1151"], cards=["gfx1151"], rules=[rule])


# JSON


def validate(value: dict[str, Any]) -> None:
    try:
        import jsonschema
    except ImportError:
        require("jsonschema")
    schema = json.loads((Path(markdown_module.__file__).parent / "schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(value)))


def test_json_is_what_its_schema_says(report: AuditReport, samples: Samples, library: Path) -> None:
    validate(report.to_json())
    unit = samples.make("rdc.o", "--offload-arch=gfx1201", "-fgpu-rdc")
    bundle = samples.bundle("b.hipfb", ["gfx1201"], version=2)
    validate(audit([unit, bundle, samples.code("gfx90a:xnack+"), library]).to_json())
    record = {"format": 1, "targets": ["gfx1201"], "commands": [{"argv": HIP.split(), "target": None}]}
    validate(audit([], record=record).to_json())


def test_the_schema_is_closed_and_printed(report: AuditReport, capsys: pytest.CaptureFixture[str]) -> None:
    """Every object names all its keys, so that a new one is not forgotten in the schema."""
    assert main(["audit", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)

    def objects(value: Any) -> list[dict[str, Any]]:
        if isinstance(value, dict):
            own = [value] if "properties" in value else []
            return own + [found for item in value.values() for found in objects(item)]
        return [found for item in value for found in objects(item)] if isinstance(value, list) else []

    assert len(objects(schema)) > 10
    assert all(found["additionalProperties"] is False for found in objects(schema))
    kernel = report.to_json()["files"][0]["libraries"][0]["code_objects"][0]["kernels"][0]
    assert set(kernel) == set(schema["$defs"]["kernel"]["properties"])


# Text


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_fits(width: int, report: AuditReport) -> None:
    text = to_table(report, width)
    long = [line for line in text.splitlines() if len(line) > width]
    assert [line for line in long if " " in line.strip() and not line.startswith("/")] == []
    if width == 80:  # names above their targets
        assert re.search(r"^sample::scale<float>\n  gfx1100 +32 ", text, re.MULTILINE)
    else:
        assert re.search(r"^sample::scale<float> +gfx1100 +32 ", text, re.MULTILINE)
    assert "16/16" in text
    assert "ROCm 7.1 or newer (compressed bundles of format 3)" in " ".join(text.split())


def test_long_names_stand_above_their_targets(report: AuditReport) -> None:
    (first, *_), *_ = (library.code_objects for library in report.libraries)
    kernels = tuple(kernel._replace(demangled="ns::" * 30 + "k<int>(int)") for kernel in first.kernels[:1])
    targets = [f"gfx{number}" for number in (1100, 1101, 1102, 1103, 1150, 1151)]
    codes = [replace(first, kernels=kernels, target=target) for target in targets]
    binary = report.binaries[0]
    library = replace(binary.libraries[0], code_objects=tuple(codes))
    lines = to_table(replace(report, binaries=(replace(binary, libraries=(library,)),)), 80).splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("ns::ns::")]
    assert lines[at].endswith("ns::k<int>")
    assert len(lines[at]) == 80
    assert lines[at + 1] == "  gfx1100 gfx1101 gfx1102 gfx1103"
    assert re.match(r"  gfx1150 gfx1151 +32 ", lines[at + 2])


# Markdown


def test_markdown(report: AuditReport) -> None:
    text = to_markdown(report)
    assert text.startswith("### Audit: ")
    assert "| requested | gfx1201 gfx1151 |" in text
    assert "| for gfx1151 | no |" in text
    assert "`policy-scratch`" in text
    assert "sample::scale&lt;float&gt;" in text
    tables = [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    for table in tables:
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table}
        assert len(cells) == 1, "every row has as many cells as its header"
    assert text.count("<details>") == text.count("</details>") == 2


def test_markdown_stays_small_and_harmless(report: AuditReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown_module, "_MAX_SIZE", 100)
    assert "too many for a summary" in to_markdown(report)
    evil = [replace(finding, message="<script>|`x`|\n# h1 @me") for finding in report.findings] * 300
    text = to_markdown(replace(report, findings=tuple(evil)))
    assert "<script" not in text
    assert "\n# h1" not in text
    assert "@me" not in text
    assert "more findings." in text


# SARIF


def test_sarif(report: AuditReport, samples: Samples) -> None:
    log = to_sarif(report, samples.folder)
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(ids) == len(set(ids))
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"].endswith(".")
        assert len(result["partialFingerprints"]["finding/v1"]) == 32
    by_rule = {result["ruleId"]: result for result in run["results"]}
    (at,) = [
        place
        for result in run["results"]
        if result["ruleId"] == "target-extra" and "region" in (place := result["locations"][0]["physicalLocation"])
    ]
    assert at["artifactLocation"]["uri"].endswith("build.log")
    assert at["region"] == {"startLine": 1}
    (scratch,) = [
        place
        for result in run["results"]
        if result["ruleId"] == "policy-scratch"
        and (place := result["locations"][0])["logicalLocations"][0]["fullyQualifiedName"].endswith("k.so")
    ]
    assert scratch["physicalLocation"]["artifactLocation"] == {"uri": "k.so", "uriBaseId": "%SRCROOT%"}
    assert "no code for gfx1151" in by_rule["card-not-served"]["message"]["text"]


def test_every_rule_is_described(root: Path) -> None:
    """All rules that the sources name stand in the table, and the table names no other."""
    text = "\n".join(p.read_text() for p in sorted((root / "rocmbuild/audit").glob("*.py")) if p.name != "rules.py")
    named = {name for name in re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)*)"', text) if name in RULES}
    used = set(
        re.findall(r'rule="([a-z0-9-]+)"|(?:find|_finding|add)\(\s*"(?:error|warning|note)",\s*"([a-z0-9-]+)"', text)
    )
    assert {name for pair in used for name in pair if name} <= set(RULES)
    assert named == set(RULES)


# The page


class Reader(HTMLParser):
    """What a page holds: its tags with their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)


def page_data(text: str) -> dict[str, Any]:
    return json.loads(Reader(text).scripts[0])


def test_the_page_needs_nothing_else(report: AuditReport) -> None:
    text = to_page(report)
    reader = Reader(text)
    assert not [attributes for _, attributes in reader.tags if {"src", "href", "srcset"} & set(attributes)]
    assert re.findall(r"https?://|@import|url\(", text) == []
    assert "{{" not in text
    data = page_data(text)
    assert len(data["findings"]) == len(report.findings)
    assert data["lists"]["requested"] == ["gfx1201", "gfx1151"]
    assert sorted({row[2] for row in data["kernels"]}) == ["gfx1100", "gfx1100 gfx1201", "gfx1201"]
    assert [command[1] for command in data["commands"]] == ["device"]
    order = [text.index(f'id="{part}-part"') for part in ("findings", "libraries", "kernels", "commands")]
    assert order == sorted(order)


@given(st.text(max_size=60))
def test_what_a_file_says_is_never_markup(report: AuditReport, name: str) -> None:
    evil = f"</script><script>alert(1)</script><!--{name}"
    binary = report.binaries[0]
    library = binary.libraries[0]
    code = library.code_objects[0]
    kernel = code.kernels[0]._replace(name=evil, demangled=evil)
    library = replace(library, name=evil, code_objects=(replace(code, kernels=(kernel,)),))
    text = to_page(replace(report, binaries=(replace(binary, path=evil, libraries=(library,)),)))
    assert text.count("<script") == 2
    assert text.count("</script") == 2
    assert page_data(text)["libraries"][0]["name"].startswith("</script><script>alert(1)</script><!--")


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("needs Chromium")


def shown(page: str, folder: Path, script: str = "") -> str:
    """The page's body after its scripts and one more have run in a real browser."""
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>"), "utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [chromium(), *words, f"file://{path}"], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.split("<body>")[1].split('<script type="application/json"')[0]


@pytest.mark.slow
def test_the_page_in_a_browser(report: AuditReport, tmp_path: Path) -> None:
    """Findings are shown, the kernels sort by a click on their header, filters leave what they name."""
    page = to_page(report)
    body = shown(page, tmp_path)
    assert body.count('<li class="error">') == sum(f.severity == "error" for f in report.findings)
    rows = len(page_data(page)["kernels"])
    assert body.count('<td class="name">') == rows
    assert 'aria-sort="ascending"' in body
    names = re.findall(r'<td class="name">([^<]*)', body)
    assert names == sorted(names)
    click = "[...document.querySelectorAll('th button')].find(b => b.textContent === 'scratch').click();"
    body = shown(page, tmp_path, click)
    assert html.unescape(re.findall(r'<td class="name">([^<]*)', body)[0]).startswith("scratch_")
    assert 'aria-sort="descending"' in body
    typed = "const f = document.getElementById('filter'); f.value = 'SCALE<int'; f.dispatchEvent(new Event('input'));"
    body = shown(page, tmp_path, typed)
    assert {html.unescape(n) for n in re.findall(r'<td class="name">([^<]*)', body)} == {"sample::scale<int>"}
    chosen = "const t = document.getElementById('target'); t.value = 'gfx1100'; t.dispatchEvent(new Event('input'));"
    body = shown(page, tmp_path, chosen)
    assert 0 < body.count('<td class="name">') < rows


# The difference of two files


def test_the_difference_of_two_files(samples: Samples, library: Path) -> None:
    same = diff(inspect(library), inspect(library))
    assert same.same
    assert diff_table(same).endswith("diff: no difference")
    slow = samples.make("slow.o", "--offload-arch=gfx1201", "--offload-arch=gfx1151", "-O0", kernel="k")
    other = samples.shared("other.so", slow)
    found = diff(inspect(library), inspect(other))
    (one,) = found.libraries
    assert (one.old, one.new) == (str(library), str(other))
    assert (one.added_targets, one.removed_targets) == (("gfx1151",), ("gfx1100",))
    assert (one.added, one.removed) == ((), ())
    (change,) = [c for c in one.changed if c.kernel == "k"]
    assert change.target == "gfx1201"
    assert change.figures["vgpr"][0] != change.figures["vgpr"][1]
    assert set(one.code) == {"gfx1201"}
    text = diff_table(found, 80)
    assert "targets   +gfx1151" in text
    assert "targets   -gfx1100" in text
    assert [line for line in text.splitlines() if len(line) > 80 and not line.startswith(("old", "new", "/"))] == []
    value = found.to_json()
    assert value["libraries"][0]["changed_kernels"][0]["figures"]
    unit = samples.make("more.o", "--offload-arch=gfx1201", "--offload-arch=gfx1100", kernel="more")
    renamed = diff(inspect(library), inspect(samples.shared("more.so", unit)))
    assert {kernel for kernel, _ in renamed.libraries[0].added} == {"more", "scratch_more"}
    assert "  + more  gfx1100 gfx1201" in diff_table(renamed)
    assert "  - scratch_k  gfx1100 gfx1201" in diff_table(renamed)


def test_libraries_of_two_wheels(samples: Samples, library: Path, tmp_path: Path) -> None:
    def wheel(name: str, **members: bytes) -> Path:
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            for member, data in members.items():
                file.writestr(f"p/{member}.so", data)
        return tmp_path / name

    data = library.read_bytes()
    other = samples.shared("w.so", samples.make("w.o", "--offload-arch=gfx1201", kernel="w")).read_bytes()
    old = wheel("old-1-py3-none-any.whl", same=data, gone=data, gone_too=data)
    new = wheel("new-1-py3-none-any.whl", same=data, come=other)
    found = diff(inspect(old), inspect(new))
    assert [(one.old, one.new) for one in found.libraries] == [
        ("", "p/come.so"),
        ("p/gone.so", ""),
        ("p/gone_too.so", ""),
        ("p/same.so", "p/same.so"),
    ]
    text = diff_table(found)
    assert "p/come.so\n  added, " in text
    assert "p/gone.so\n  removed, " in text
    assert text.endswith("diff: 3 libraries differ")


# The command line


def test_all_forms_in_one_run(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {form: tmp_path / f"out.{form}" for form in ("markdown", "sarif", "html")}
    words = [word for form, path in files.items() for word in (f"--{form}", str(path))]
    assert main(["audit", str(library), "--targets", "gfx1201,gfx1100", *words]) == 0
    assert "audit: good" in capsys.readouterr().out
    assert files["markdown"].read_text().startswith("### Audit: good")
    assert json.loads(files["sarif"].read_text())["version"] == "2.1.0"
    assert files["html"].read_text().startswith("<!doctype html>")
    for form, path in files.items():
        assert main(["audit", str(library), "--targets", "gfx1201,gfx1100", "--format", form]) == 0
        assert capsys.readouterr().out.rstrip("\n") == path.read_text().rstrip("\n")
    assert main(["audit", str(library), "--format", "json"]) == 0
    validate(json.loads(capsys.readouterr().out))
    assert main(["audit", "--diff", str(library), str(library), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True
    assert main(["audit", "--diff", str(library), str(library)]) == 0
    assert "no difference" in capsys.readouterr().out
    assert main(["audit", "--diff", str(library)]) == 2
    assert "wanted the old one and the new one" in capsys.readouterr().err
    assert main(["audit"]) == 2
    assert "nothing to audit" in capsys.readouterr().err
