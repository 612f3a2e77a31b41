"""A part of one's own is documented where one looks for it: `help(cp.Part)` and a page whose code runs."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import torch

import counterpoise as cp
from counterpoise.hooks import CLIENT_HOOKS, SERVER_HOOKS

PAGE = (Path(__file__).parents[1] / "docs" / "parts.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page() -> dict:
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(block, names)
    return names


def test_help_lists_every_hook_with_its_arguments_and_an_example() -> None:
    text = inspect.getdoc(cp.Part)
    for hook, takes in (CLIENT_HOOKS | SERVER_HOOKS).items():
        named = re.escape(hook + takes)
        assert re.search(rf"\n    {named}  +\S.*\n        {hook}=lambda {re.escape(takes[1:-1])}: ", text), hook


def test_the_page_has_the_same_list() -> None:
    text = inspect.getdoc(cp.Part)
    listed = text[text.index("On one client,") : text.index("A client hook may run")].rstrip()
    assert f"```text\n{listed}\n```" in PAGE


def test_help_lists_what_a_part_says_beside_its_hooks() -> None:
    text = inspect.getdoc(cp.Part)
    hooks = {*CLIENT_HOOKS, *SERVER_HOOKS, "name"}
    for name in [field.name for field in dataclasses.fields(cp.Part) if field.name not in hooks]:
        assert re.search(rf"\n +{name}=", text), name


def test_every_example_of_the_page_is_short() -> None:
    assert all(len(block.splitlines()) < 20 for block in re.findall(r"```python\n(.*?)```", PAGE, re.S))


def test_the_pages_methods_run_against_its_liars(page: dict) -> None:
    for run in page["runs"].values():
        assert run.status == "finished"
        assert len(run.liars) == 2
    assert any(r.outcome.excluded for r in page["runs"]["trusting"].rounds)
    assert "habit" in page["runs"]["habitual"].frame("clients")
    assert [part.name for part in page["median"].combine] == ["median"]
    assert not page["median"].weigh


def test_the_pages_rules_compute_what_they_say(page: dict) -> None:
    optimizer = page["sign_descent"](0.5)
    w, _ = optimizer.step(torch.tensor([1.0, -2.0]), torch.tensor([3.0, -4.0]), {}, torch.tensor(0.5))
    assert w.tolist() == [0.5, -1.5]
    weights = page["runs"]["rooted"].weights[0]
    counts = page["runs"]["rooted"].rounds[0].outcome.claims
    total = sum(n**0.5 for n in counts.values())
    assert weights == pytest.approx({client: n**0.5 / total for client, n in counts.items()})


def test_the_pages_rule_by_reports_weighs_by_the_loss_after_each_step(page: dict) -> None:
    x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    method = cp.methods.fedavg().replacing("inverse", weigh=page["by_loss"](1.0))
    local = cp.Local(epochs=1, batch=12, optimizer=cp.sgd(0.1))
    alone = cp.Federation.from_datasets([(x, y)], heldout=0)
    run = cp.simulate(method, alone, model=cp.models.linear, rounds=1, local=local)
    after = torch.nn.functional.cross_entropy(run.model(x), y).item()
    assert run.rounds[0].outcome.notes["reported_loss"] == pytest.approx({0: after})
    first = page["runs"]["inverse"].rounds[0].outcome
    inverse = {client: 1 / loss for client, loss in first.notes["reported_loss"].items()}
    cap = 3 * torch.tensor(list(inverse.values())).quantile(0.5).item()
    total = sum(min(value, cap) for value in inverse.values())
    weights = page["runs"]["inverse"].weights[0]
    assert weights == pytest.approx({client: min(value, cap) / total for client, value in inverse.items()})


def turn(part: cp.Part, model: list[float], updates: list[list[float]], **kept: dict) -> cp.Round:
    """One turn of a part in a round of clients with equal counts, in float64."""
    rows = torch.tensor(updates, dtype=torch.float64)
    cohort = cp.Cohort(tuple(range(len(rows))), rows, torch.ones(len(rows)), torch.ones(len(rows)))
    return part.apply(cp.Round(cohort, torch.tensor(model, dtype=torch.float64), None, combined=rows.mean(0), **kept))


def test_the_pages_rules_with_state_are_exponential_means(page: dict) -> None:
    start = torch.zeros(2, dtype=torch.float64)
    part = page["by_habit"](0.9)
    records = {name: value.expand(2) for name, value in part.client_record(start).items()}
    first = turn(part, [0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], records=records)
    assert first.weights.tolist() == pytest.approx([0.5**0.5] * 2)
    second = turn(part, [0.0, 0.0], [[1.0, 0.0], [-3.0, 0.0]], records=first.records)
    assert second.records["mean"].tolist() == pytest.approx([0.9 * 0.5**0.5 - 0.1, 0.9 * 0.5**0.5 + 0.1])
    assert second.records["rounds"].tolist() == [2, 2]
    part = page["smooth"](0.75)
    first = turn(part, [0.0, 0.0], [[4.0, 8.0]], state=part.server_state(start))
    second = turn(part, [0.0, 0.0], [[4.0, 8.0]], state=first.state)
    assert (first.combined.tolist(), second.combined.tolist()) == ([1.0, 2.0], [1.75, 3.5])
