"""The reference is generated from the code, and links between pages lead somewhere, without building the site."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from counterpoise.methods import METHODS
from counterpoise.runs.config import (
    Config,
    DataConfig,
    EngineConfig,
    EvaluationConfig,
    LimitsConfig,
    LocalConfig,
    StopConfig,
)
from counterpoise.runs.experiments import PaperConfig
from counterpoise.runs.places import CHOICES

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(text: str) -> list[list[str]]:
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]


def test_every_key_is_listed_with_its_meaning(reference: ModuleType) -> None:
    listed = {row[0].strip(" `"): row[-1].strip() for row in rows(reference.keys())}
    tables = {"data": DataConfig, "local": LocalConfig, "paper": PaperConfig}
    tables |= {"engine": EngineConfig, "evaluation": EvaluationConfig, "limits": LimitsConfig, "stop": StopConfig}
    expected = {field.alias or name for name, field in Config.model_fields.items() if name not in tables} | {"like"}
    expected |= {f"{name}.{key}" for name, table in tables.items() for key in table.model_fields}
    assert listed.keys() == expected
    assert all(listed.values())


def test_every_choice_is_listed_with_all_its_options(reference: ModuleType) -> None:
    text = reference.methods() + reference.choices()
    for registry in (METHODS, *CHOICES.values(), reference.METRICS):
        for entry in registry:
            assert f"### `{entry.name}`" in text
    listed = [row[0].strip(" `") for row in rows(reference.methods())]
    assert sorted(listed) == sorted(option for entry in METHODS for option in entry.parameters)


def test_every_command_is_listed(reference: ModuleType) -> None:
    text = reference.commands()
    assert {"run", "compare", "sweep", "runs list", "study run", "deploy local"} <= {
        *re.findall(r"^## (.+)$", text, re.M)
    }
    assert "| `--set KEY=VALUE` |" in text


def test_every_page_that_is_generated_is_asked_for(reference: ModuleType) -> None:
    asked = [name for page in PAGES for name in re.findall(r"<!-- generated: (\w+) -->", page.read_text())]
    assert sorted(asked) == sorted(reference.PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
