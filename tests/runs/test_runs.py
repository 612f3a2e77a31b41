"""A run kept in a folder: complete, repeatable, stopped and resumed, and never half written."""

from __future__ import annotations

import json
import math
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.adversary import ADVERSARIES
from counterpoise.comparisons.collection import read_run
from counterpoise.engine import Simulation
from counterpoise.method import Client, Cohort, Part, Reply, Round
from counterpoise.methods import METHODS
from counterpoise.runs.build import setup
from counterpoise.runs.checkpoint import Checkpoint
from counterpoise.runs.config import override, parse, read
from counterpoise.runs.folder import Folder


def federation(**settings: Any) -> cp.Federation:
    return cp.load("digits", partition=cp.dirichlet(0.5, clients=12), **{"probe": 1, **settings})


def remembering() -> Part:
    """A part with state in all three homes, each a running sum."""

    def finish(client: Client, reply: Reply) -> Reply:
        kept = client.state["sum"] + reply.update
        return Reply(reply.update - 0.01 * kept, {"kept": kept}, {"sum": kept})

    def apply(round: Round) -> Round:
        records = {"seen": round.records["seen"] + 1, "sum": round.records["sum"] + round.reports["kept"]}
        total = round.state["total"] + round.cohort.updates.sum(0)
        return round.but(records=records, state={"total": total}, model=round.model + 1e-3 * records["sum"].mean(0))

    return Part(
        "remembering",
        server_state=lambda start: {"total": torch.zeros_like(start)},
        client_record=lambda start: {"seen": torch.zeros((), dtype=torch.int64), "sum": torch.zeros_like(start)},
        client_state=lambda start: {"sum": torch.zeros_like(start)},
        when_lost="the sum starts again at zero",
        finish=finish,
        apply=apply,
        amends=True,
    )


def state(simulation: Simulation) -> dict[str, Tensor]:
    """Everything a simulation remembers."""
    server = simulation.server
    found = {"model": server.model}
    found |= {f"state {p} {n}": t for p, named in server.state.items() for n, t in named.items()}
    for kind, stores in (("record", server.records), ("client", simulation.client_state)):
        for part, store in stores.items():
            found |= {f"{kind} {part} {c} {n}": t for c in store for n, t in store[c].items()}
    return found


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def weights(run: cp.Run) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


SETTINGS: dict[str, Any] = {"model": cp.models.mlp, "rounds": 7, "cohort": 4, "seed": 3}


@pytest.mark.parametrize("name", [entry.name for entry in METHODS])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(name: str, tmp_path: Path) -> None:
    fed = federation()
    whole = cp.simulate(name, fed, out=tmp_path / "whole", **SETTINGS)
    cp.simulate(name, fed, out=tmp_path / "part", on_round=lambda record: record.round == 1, **SETTINGS)
    assert len(cp.resume(tmp_path / "part", on_round=lambda record: record.round == 4).rounds) == 4
    resumed = cp.resume(tmp_path / "part")
    assert torch.equal(weights(whole), weights(resumed))
    assert resumed.status == "finished"
    for a, b in zip(whole.rounds, resumed.rounds, strict=True):
        assert (a.cohort, a.outcome, a.metrics, a.clients, a.bytes_up) == (
            b.cohort,
            b.outcome,
            b.metrics,
            b.clients,
            b.bytes_up,
        )


def test_state_in_all_three_homes_survives_a_checkpoint_at_every_round(tmp_path: Path) -> None:
    method = cp.methods.fedavgm().adding(upload=remembering())
    torch.manual_seed(0)
    fed, module = federation(), cp.models.mlp((1, 8, 8), 10)

    def fresh() -> Simulation:
        return Simulation(method, fed, module, cohort=4, seed=1)

    whole = fresh()
    for _ in range(6):
        whole.advance()
    going = fresh()
    for _ in range(6):
        going.advance()
        keeper = Checkpoint(tmp_path, "x")
        if going.round > 1:
            keeper.load(fresh())  # learns which rows are on disk, as a resumed run does
        keeper.save(going, "running")
        going = fresh()
        Checkpoint(tmp_path, "x").load(going)
    assert equal(state(whole), state(going))
    assert len(state(going)) > 12


def test_a_checkpoint_writes_only_the_rows_of_the_clients_it_touched(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    torch.manual_seed(0)
    simulation = Simulation(
        cp.methods.fedavg().adding(upload=remembering()), federation(), cp.models.mlp((1, 8, 8), 10), cohort=3
    )
    keeper = Checkpoint(tmp_path, "x")
    for _ in range(5):
        record = simulation.advance()
        keeper.save(simulation, "running")
        rows = load_file(tmp_path / f"rows-{record.round}.safetensors")
        assert rows["record/remembering/"].tolist() == list(record.cohort)
    live = {client for path in tmp_path.glob("rows-*") for client in load_file(path)["client/remembering/"].tolist()}
    assert live == set(simulation.client_state["remembering"])


def test_a_checkpoint_may_hold_more_than_the_method_keeps_and_not_less(tmp_path: Path) -> None:
    """Runs of an earlier version, whose method kept what today's does not, go on."""
    torch.manual_seed(0)
    module, fed = cp.models.mlp((1, 8, 8), 10), federation()
    lean, rich = cp.methods.fedavg(), cp.methods.fedavgm().adding(upload=remembering())
    simulation = Simulation(rich, fed, module, cohort=4)
    simulation.advance()
    Checkpoint(tmp_path, "x").save(simulation, "running")
    again = Simulation(lean, fed, module, cohort=4)
    Checkpoint(tmp_path, "x").load(again)
    assert again.round == 1
    assert torch.equal(again.server.model, simulation.server.model)
    again.advance()
    Checkpoint(tmp_path, "x").save(again, "running")
    with pytest.raises(cp.CounterpoiseError, match="does not fit this run's method and model"):
        Checkpoint(tmp_path, "x").load(Simulation(rich, fed, module, cohort=4))
    with pytest.raises(cp.CounterpoiseError, match="does not fit this run's method and model"):
        Checkpoint(tmp_path, "x").load(Simulation(lean, fed, cp.models.linear((1, 8, 8), 10), cohort=4))


def test_a_save_that_fails_leaves_the_last_checkpoint_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, fed = cp.models.mlp((1, 8, 8), 10), federation()
    method = cp.methods.fedavgm().adding(upload=remembering())
    simulation = Simulation(method, fed, module, cohort=4)
    keeper = Checkpoint(tmp_path, "x")
    simulation.advance()
    keeper.save(simulation, "running")
    before = state(simulation)
    simulation.advance()
    import os

    moved = os.replace
    for fail_at in range(3):  # rows, state, index: the disk fills up at each in turn
        calls = iter(range(10))

        def full(source: Any, target: Any, calls: Any = calls, fail_at: int = fail_at) -> None:
            if next(calls) == fail_at:
                raise OSError(28, "No space left on device")
            moved(source, target)

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(cp.CounterpoiseError, match="could not be written: No space left on device"):
            keeper.save(simulation, "running")
        again = Simulation(method, fed, module, cohort=4)
        monkeypatch.setattr(os, "replace", moved)
        Checkpoint(tmp_path, "x").load(again)
        assert again.round == 1
        assert equal(state(again), before)


@pytest.mark.parametrize(
    ("file", "damage", "sentence"),
    [
        (
            "state-7.safetensors",
            lambda data: data[:-9],
            "damaged: .*state-7.safetensors is missing or is not what was written",
        ),
        ("state-7.safetensors", lambda data: data[:-1] + b"x", "is not what was written"),
        ("checkpoint.json", lambda data: data[:20], "checkpoint.json is not valid JSON"),
        ("checkpoint.json", lambda data: b'{"a": 1}', "was not written by counterpoise"),
        ("checkpoint.json", lambda data: data.replace(b'"schema": 1', b'"schema": 9'), "has schema 9"),
        ("checkpoint.json", lambda data: data.replace(b'"run": "', b'"run": "0'), "belongs to another run"),
    ],
)
def test_a_torn_or_foreign_checkpoint_is_refused(file: str, damage: Any, sentence: str, tmp_path: Path) -> None:
    cp.simulate("fedavgm", federation(), out=tmp_path / "run", **SETTINGS)
    path = tmp_path / "run" / "checkpoint" / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(cp.CounterpoiseError, match=sentence):
        cp.resume(tmp_path / "run")


def test_a_changed_configuration_does_not_go_on_from_the_old_checkpoint(tmp_path: Path) -> None:
    cp.simulate("fedavg", federation(), out=tmp_path, **SETTINGS)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("batch = 32", "batch = 8"))
    with pytest.raises(cp.CounterpoiseError, match="belongs to another run"):
        cp.resume(tmp_path)


def test_a_torn_last_line_and_lines_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    fed = federation()
    whole = cp.simulate("fedavg", fed, out=tmp_path / "whole", **SETTINGS)
    cp.simulate("fedavg", fed, out=tmp_path / "torn", on_round=lambda record: record.round == 3, **SETTINGS)
    for name in ("metrics.jsonl", "clients.jsonl"):
        lines = (tmp_path / "whole" / name).read_text().splitlines(keepends=True)
        with open(tmp_path / "torn" / name, "a") as file:
            file.write("".join(lines[4:6]) + lines[6][: len(lines[6]) // 2])
    assert torch.equal(weights(cp.resume(tmp_path / "torn")), weights(whole))
    rounds = [json.loads(line).get("round") for line in (tmp_path / "torn" / "metrics.jsonl").read_text().splitlines()]
    assert rounds == [None, 1, 2, 3, 4, 5, 6, 7]


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    fed = federation()
    whole = cp.simulate("fedavg", fed, out=tmp_path / "whole", **SETTINGS)
    (tmp_path / "killed").mkdir()
    shutil.copy(tmp_path / "whole" / "config.toml", tmp_path / "killed")
    for name in ("metrics.jsonl", "clients.jsonl"):
        header = (tmp_path / "whole" / name).read_text().splitlines(keepends=True)[0]
        (tmp_path / "killed" / name).write_text(header)
    assert torch.equal(weights(cp.resume(tmp_path / "killed")), weights(whole))


def test_a_finished_run_can_be_given_more_rounds(tmp_path: Path) -> None:
    fed = federation()
    longer = cp.simulate("fedavgm", fed, out=tmp_path / "longer", **(SETTINGS | {"rounds": 9}))
    cp.simulate("fedavgm", fed, out=tmp_path / "run", **SETTINGS)
    assert torch.equal(weights(cp.resume(tmp_path / "run", rounds=9)), weights(longer))
    with pytest.raises(cp.CounterpoiseError, match="has already run 9 rounds; it cannot end at round 3"):
        cp.resume(tmp_path / "run", rounds=3)


def test_the_configuration_alone_repeats_the_run(tmp_path: Path) -> None:
    fed = federation(probe=1)
    local = cp.Local(
        epochs=2,
        batch=10,
        optimizer=cp.sgd(0.05, momentum=0.9),
        schedule=cp.exponential(0.9),
        augment=cp.augment.crop(1),
    )
    limits = cp.Limits(norm_ratio=math.inf, max_examples=10_000)
    run = cp.simulate(cp.methods.fedprox(mu=0.3), fed, local=local, limits=limits, out=tmp_path / "a", **SETTINGS)
    values = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    assert values["limits"] == {"norm_ratio": math.inf, "max_examples": 10_000}
    from counterpoise.runs.build import setup
    from counterpoise.runs.starting import run_setup

    again = run_setup(setup(parse(values, "a")), out=tmp_path / "b")
    assert torch.equal(weights(run), weights(again))
    assert (tmp_path / "a" / "config.toml").read_text() == (tmp_path / "b" / "config.toml").read_text()


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs).squeeze(1)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets, reduction="none")


def test_own_objects_are_asked_for_again_and_checked_by_their_fingerprints(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 2)
    y = x @ torch.tensor([1.0, -2.0])
    fed = cp.Federation.from_arrays(x, y, partition=cp.iid(6), test=(x[:5], y[:5]))
    module = Own()
    own: dict[str, Any] = {"federation": fed, "model": module, "loss": squares}
    kept = {"rounds": 5, "cohort": 3, "local": cp.Local(batch=5, optimizer=cp.sgd(0.05))}
    whole = cp.simulate("fedavg", fed, model=module, loss=squares, out=tmp_path / "whole", **kept)  # type: ignore[arg-type]
    cp.simulate(
        "fedavg", fed, model=module, loss=squares, out=tmp_path / "run", on_round=lambda r: r.round == 2, **kept
    )  # type: ignore[arg-type]
    assert whole.accuracy is None
    assert whole.last("loss") is not None
    for missing in own:
        with pytest.raises(cp.CounterpoiseError, match=f"{missing} of your own. Give it again"):
            cp.resume(tmp_path / "run", **{k: v for k, v in own.items() if k != missing})
    with pytest.raises(cp.CounterpoiseError, match="model given is not the one"):
        cp.resume(tmp_path / "run", **(own | {"model": Own()}))
    other = cp.Federation.from_arrays(x + 1, y, partition=cp.iid(6), test=(x[:5], y[:5]))
    with pytest.raises(cp.CounterpoiseError, match="federation given is not the one"):
        cp.resume(tmp_path / "run", **(own | {"federation": other}))
    assert torch.equal(weights(cp.resume(tmp_path / "run", **own)), weights(whole))


def test_a_diverging_run_stops_says_so_and_keeps_what_was_good(tmp_path: Path) -> None:
    local = cp.Local(optimizer=cp.sgd(1e30))
    with pytest.raises(cp.Diverged, match=r"Training diverged.*Lower the.*learning rate.*round 3;.*kept in") as caught:
        cp.simulate("fedavg", federation(), model=cp.models.mlp, rounds=3, local=local, out=tmp_path / "run")
    run = caught.value.run
    assert isinstance(run, cp.Run)
    assert run.status == "diverged"
    assert all(p.isfinite().all() for p in run.model.parameters())
    with pytest.raises(cp.CounterpoiseError, match="diverged after round 2; resuming it would diverge again"):
        cp.resume(tmp_path / "run")


def test_a_resumed_run_knows_the_rounds_in_which_most_clients_sent_nan(tmp_path: Path) -> None:
    def settings(rounds: int) -> dict[str, Any]:
        local = cp.Local(optimizer=cp.sgd(1e30))
        return {"model": cp.models.mlp, "rounds": rounds, "local": local}

    stop = {"on_round": lambda record: record.round == 2}
    cp.simulate("fedavg", federation(), out=tmp_path / "run", **settings(3), **stop)
    with pytest.raises(cp.Diverged, match=r"in the last 3 rounds .*This was in round 3;"):
        cp.resume(tmp_path / "run", federation=federation())


def test_a_run_that_trained_nothing_has_failed_and_can_be_given_more_rounds(tmp_path: Path) -> None:
    def silent(round: int, cohort: Cohort) -> Cohort:
        return cohort if round > 2 else cohort.keep(torch.zeros(len(cohort), dtype=torch.bool))

    path = tmp_path / "run"
    settings = {**SETTINGS, "rounds": 2, "adversary": silent}
    sentence = r"^No round trained the model: all 2 rounds were skipped, because no client could be heard \(clients were left out for this reason: it did not reply\)\."
    with pytest.raises(
        cp.Failed, match=sentence + r" .* run it again with --overwrite \(in Python: overwrite=True\)\.$"
    ) as caught:
        cp.simulate("fedavg", federation(), out=path, **settings)
    run = caught.value.run
    assert isinstance(run, cp.Run)
    assert (run.status, len(run.rounds)) == ("failed", 2)
    assert run.summary()["reason"].startswith("No round trained the model")
    kept = read_run(path)
    assert (kept.status, kept.sentence) == ("failed", run.summary()["reason"])
    with pytest.raises(cp.Failed, match=sentence):
        cp.resume(path, adversary=silent)
    resumed = cp.resume(path, rounds=3, adversary=silent)
    assert resumed.status == read_run(path).status == "finished"
    assert "reason" not in resumed.summary()


def test_a_run_kept_as_finished_that_trained_nothing_reads_as_failed(tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": 1, "adversary": cp.adversary.crashed(fraction=1.0)}
    with pytest.raises(cp.Failed):
        cp.simulate("fedavg", federation(), out=tmp_path / "run", **settings)
    index = tmp_path / "run/checkpoint/checkpoint.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"status": "finished"}))
    assert read_run(tmp_path / "run").status == "failed"


def test_a_run_kept_before_its_method_had_an_option_goes_on_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run"
    weighted = {"method": METHODS.make("rfa", weights="data"), "federation": federation()}
    cp.simulate(**weighted, out=path, on_round=lambda record: record.round == 1, **SETTINGS)
    text = (path / "config.toml").read_text()
    assert text.count('weights = "data"\n') == 1
    (path / "config.toml").write_text(text.replace('weights = "data"\n', ""))
    index = path / "checkpoint/checkpoint.json"
    bound = {"run": Folder.open(path).checkpoint.fingerprint}
    index.write_text(json.dumps(json.loads(index.read_text()) | bound))
    assert torch.equal(weights(cp.resume(path)), weights(cp.simulate(**weighted, **SETTINGS)))


def test_a_run_kept_before_its_augmentation_had_an_option_goes_on_as_it_was(tmp_path: Path) -> None:
    path, local = tmp_path / "run", cp.Local(batch=10, optimizer=cp.sgd(0.05), augment=cp.augment.crop(1))
    own = {"method": "fedavg", "federation": federation(), "local": local}
    cp.simulate(**own, out=path, on_round=lambda record: record.round == 1, **SETTINGS)  # type: ignore[arg-type]
    text = (path / "config.toml").read_text()
    for line in ('fill = "zeros"\n', "chance = 1.0\n"):
        assert text.count(line) == 1
        text = text.replace(line, "")
    (path / "config.toml").write_text(text)
    index = path / "checkpoint/checkpoint.json"
    bound = {"run": Folder.open(path).checkpoint.fingerprint}
    index.write_text(json.dumps(json.loads(index.read_text()) | bound))
    assert torch.equal(weights(cp.resume(path)), weights(cp.simulate(**own, **SETTINGS)))  # type: ignore[arg-type]


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    cp.simulate("fedavg", federation(), out=tmp_path, **SETTINGS)
    other = cp.simulate("fedavgm", federation(), **SETTINGS)
    with pytest.raises(cp.CounterpoiseError, match=r"already holds a run\. Continue it with 'counterpoise resume"):
        other.save(tmp_path)


def test_facts_of_a_round_are_kept_and_read_again(tmp_path: Path) -> None:
    run = cp.simulate("rfa", federation(), out=tmp_path, **SETTINGS)
    again = cp.resume(tmp_path)
    assert [r.outcome for r in again.rounds] == [r.outcome for r in run.rounds]
    assert again.rounds[-1].outcome.facts["iterations"] > 0
    assert "iterations" not in again.rounds[-1].metrics


def test_initial_weights_and_cohorts_are_the_same_for_every_method() -> None:
    fed = federation()
    runs = [
        cp.simulate(e.name, fed, **(SETTINGS | {"rounds": 1, "cohort": 4}), local=cp.Local(optimizer=cp.sgd(1e-30)))
        for e in METHODS
    ]
    assert all(torch.equal(weights(runs[0]), weights(run)) for run in runs)
    assert len({run.rounds[0].cohort for run in runs}) == 1
    other = cp.simulate("fedavg", fed, **(SETTINGS | {"seed": 4, "rounds": 1}))
    assert not torch.equal(weights(runs[0]), weights(other))


def test_a_runs_record_holds_weights_costs_and_the_model() -> None:
    fed = federation()
    run = cp.simulate("fedavg", fed, **SETTINGS)
    for record in run.rounds:
        sizes = fed.train.sizes(torch.tensor(record.cohort)).double()
        expected = dict(zip(record.cohort, (sizes / sizes.sum()).tolist(), strict=True))
        assert record.outcome.weights == pytest.approx(expected)
    count = sum(p.numel() for p in run.model.parameters())
    assert run.rounds[0].bytes_down == 4 * (4 * count + 4)  # four clients; the model and the learning rate
    assert run.rounds[0].bytes_up == 4 * (4 * count + 8 + 8)  # four clients; the update, its count and its steps
    test = fed.test
    assert test is not None
    with torch.no_grad():
        right = (
            (run.model(test.take(torch.arange(len(test)), torch.float32)[0]).argmax(1) == test.targets).double().mean()
        )
    assert run.accuracy == pytest.approx(float(right))


def test_settings_on_the_command_line_reach_into_tables() -> None:
    values, name = read("quickstart")
    assert name == "quickstart"
    changed = override(
        values,
        ["method=fedprox", "method.mu=0.5", "local.optimizer.lr=0.2", "data.partition.clients=7", "model=linear"],
    )
    config = parse(changed, "x")
    assert config.method == {"name": "fedprox", "mu": 0.5}
    assert config.local.optimizer == {"name": "sgd", "lr": 0.2, "momentum": 0.9}
    assert config.data.partition == {"name": "dirichlet", "alpha": 0.3, "clients": 7}
    assert config.model == {"name": "linear"}
    assert values["method"] == {"name": "fedavg"}


def test_options_in_brackets_are_read_wherever_a_choice_is_named() -> None:
    settings = ["method=feddua(patience=9):fedprox(mu=0.5)", "adversary=claims(factor=10)", "adversary.clients=2"]
    config = parse({**override(read("quickstart")[0], settings), "model": "mlp(hidden=[8])"}, "x")
    assert config.method == {"name": "feddua:fedprox", "patience": 9, "mu": 0.5}
    assert config.adversary == [{"name": "claims", "factor": 10, "clients": 2}]
    assert config.model == {"name": "mlp", "hidden": [8]}
    with pytest.raises(cp.CounterpoiseError, match=r"^x, model: An option in brackets takes key=value"):
        parse({**override(read("quickstart")[0], settings), "model": "mlp(8)"}, "x")


def test_adamw_is_made_from_its_name_with_its_options() -> None:
    settings = ["local.optimizer=adamw", "local.optimizer.lr=0.01", "local.optimizer.weight_decay=0.1"]
    made = setup(parse(override(read("quickstart")[0], settings), "x"), federation=federation())
    assert made.training.local.optimizer.spec == cp.adamw(0.01, weight_decay=0.1).spec


@pytest.mark.parametrize("name", [entry.name for entry in ADVERSARIES])
def test_every_adversary_can_be_named_on_the_command_line(name: str) -> None:
    config = parse(override(read("quickstart")[0], [f"adversary={name}", "adversary.clients=2"]), "x")
    assert config.adversary == [{"name": name, "clients": 2}]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["local.epoch=3"], "There is no setting 'local.epoch' in x. Did you mean 'local.epochs'"),
        (["roun=3"], "There is no setting 'roun' in x. Did you mean 'rounds'"),
        (["foo=3"], "There is no setting 'foo' in x. Known: adversary, cohort, data, .*, stop.$"),
        (["rounds=0"], "x: rounds should be greater than or equal to 1, not 0"),
        (["rounds=many"], "x: rounds should be a valid integer, not 'many'"),
        (["method=3"], "x: method must be a name, or a table with a name"),
        (["nothing"], "--set takes key=value"),
        (["schema=2"], "schema 2, but this version of counterpoise knows only 1"),
    ],
)
def test_a_wrong_setting_is_told_in_one_sentence(settings: list[str], sentence: str) -> None:
    with pytest.raises(cp.CounterpoiseError, match=sentence):
        parse(override(read("quickstart")[0], settings), "x")


def test_a_run_goes_on_only_with_what_it_was_made_with(tmp_path: Path) -> None:
    fed = federation()
    own = cp.methods.fedavg().adding("mine", local=cp.parts.proximal(0.1))
    cp.simulate("fedavg", fed, out=tmp_path / "named", on_round=lambda r: r.round == 2, **SETTINGS)
    cp.simulate(own, fed, out=tmp_path / "own", on_round=lambda r: r.round == 2, **SETTINGS)
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("named", {"method": cp.methods.fedprox(mu=100.0)}, "method given is not the one"),
        (
            "named",
            {"cohort": lambda seed, round, population: torch.tensor([0])},
            "cohort given is not the one|own given is not the one",
        ),
        ("named", {"model": cp.models.linear}, "model given is not the one"),
        ("named", {"federation": federation(probe=2)}, "federation given is not the one"),
        ("own", {}, "method of your own. Give it again"),
        (
            "own",
            {"method": cp.methods.fedavg().adding("mine", upload=cp.parts.proximal(0.1))},
            "method given is not the one",
        ),
    ]
    for folder, given, sentence in refused:
        with pytest.raises(cp.CounterpoiseError, match=sentence):
            cp.resume(tmp_path / folder, **given)
    assert cp.resume(tmp_path / "own", method=own).status == "finished"


def test_scale_and_shift_are_part_of_the_datas_fingerprint() -> None:
    x, y = torch.zeros(6, 2, dtype=torch.uint8), torch.arange(6) % 2
    prints = {
        cp.Federation.from_arrays(x, y, partition=cp.iid(2), scale=scale, shift=shift).fingerprint
        for scale, shift in ((1.0, 0.0), (2.0, 0.0), (1.0, 1.0))
    }
    assert len(prints) == 3


def test_an_own_schedule_and_optimiser_are_asked_for_again(tmp_path: Path) -> None:
    from dataclasses import replace

    schedule, optimizer = cp.local.Schedule(lambda round: 1 / round), replace(cp.sgd(0.1), lr=0.2)
    local = cp.Local(optimizer=optimizer, schedule=schedule)
    fed = federation()
    whole = cp.simulate("fedavg", fed, local=local, out=tmp_path / "whole", **SETTINGS)
    cp.simulate("fedavg", fed, local=local, out=tmp_path / "run", on_round=lambda r: r.round == 2, **SETTINGS)
    with pytest.raises(cp.CounterpoiseError, match="optimizer of your own"):
        cp.resume(tmp_path / "run", schedule=schedule)
    assert torch.equal(weights(cp.resume(tmp_path / "run", schedule=schedule, optimizer=optimizer)), weights(whole))


def test_an_error_of_the_users_keeps_the_rounds_before_it(tmp_path: Path) -> None:
    def fail(record: Any) -> None:
        if record.round == 3:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        cp.simulate("fedavgm", federation(), out=tmp_path / "run", on_round=fail, **SETTINGS)
    whole = cp.simulate("fedavgm", federation(), **SETTINGS)
    resumed = cp.resume(tmp_path / "run")
    assert len(resumed.rounds) == 7
    assert torch.equal(weights(resumed), weights(whole))


def test_two_processes_do_not_run_one_folder(tmp_path: Path) -> None:
    from counterpoise.runs.folder import Folder

    cp.simulate("fedavg", federation(), out=tmp_path, **SETTINGS)
    with Folder.open(tmp_path).locked(), pytest.raises(cp.CounterpoiseError, match="Another process is working on"):
        cp.resume(tmp_path, rounds=9)


def test_a_state_that_is_the_model_itself_can_be_saved(tmp_path: Path) -> None:
    part = Part(
        "last",
        server_state=lambda start: {"model": start},
        apply=lambda round: round.but(state={"model": round.model}),
    )
    method = cp.methods.fedavg().adding(update=part)
    cp.simulate(method, federation(), out=tmp_path, on_round=lambda r: r.round == 2, **SETTINGS)
    assert cp.resume(tmp_path, method=method).status == "finished"


def test_numbers_that_are_not_finite_are_null_on_disk(tmp_path: Path) -> None:
    def odd(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0] * float("inf")

    run = cp.simulate("fedavg", federation(), metrics={"odd": odd}, out=tmp_path, **SETTINGS)
    line = json.loads(
        (tmp_path / "metrics.jsonl").read_text().splitlines()[1], parse_constant=lambda text: pytest.fail(text)
    )
    assert line["odd"] is None
    again = cp.resume(tmp_path, metrics={"odd": odd})
    assert math.isnan(again.rounds[0].metrics["odd"])
    assert len(run.rounds) == 7


def test_a_metric_cannot_take_a_name_of_the_record() -> None:
    for name in ("seconds", "facts", "clients", "excluded"):
        with pytest.raises(cp.CounterpoiseError, match=f"A metric cannot be called '{name}'"):
            cp.simulate("fedavg", federation(), metrics={name: squares}, **SETTINGS)


def test_runs_with_the_same_data_and_seed_share_one_federation() -> None:
    def held(*settings: str) -> cp.Federation:
        return setup(parse(override(read("quickstart")[0], settings), "x")).federation

    one = held("method=fedavgm", "local.epochs=3")
    assert held("method=fedadam", f"data.fingerprint={one.fingerprint}") is one
    assert held("data.seed=0") is one
    assert held("seed=1").fingerprint != one.fingerprint
    assert held("data.partition.alpha=0.4").fingerprint != one.fingerprint
    assert held().fingerprint == one.fingerprint


def test_a_run_without_a_folder_can_be_saved_and_resumed(tmp_path: Path) -> None:
    method = cp.methods.fedavgm().adding(upload=remembering())
    fed = federation()
    whole = cp.simulate(method, fed, **(SETTINGS | {"rounds": 9}))
    run = cp.simulate(method, fed, **SETTINGS)
    run.save(tmp_path / "kept")
    with pytest.raises(cp.CounterpoiseError, match="already kept"):
        run.save(tmp_path / "again")
    assert torch.equal(weights(cp.resume(tmp_path / "kept", method=method, rounds=9)), weights(whole))


@pytest.mark.parametrize("rounds", [7.5, "9", 0, True])
def test_a_run_cannot_be_given_what_is_no_number_of_rounds(rounds: Any, tmp_path: Path) -> None:
    cp.simulate("fedavg", federation(), out=tmp_path, **SETTINGS)
    with pytest.raises(cp.CounterpoiseError, match="rounds must be a whole number from 1 to"):
        cp.resume(tmp_path, rounds=rounds)
    assert cp.resume(tmp_path).status == "finished"


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("metrics.jsonl", b'{"schema":1}\n\xff\n{}\n', "is damaged and cannot be read"),
        ("metrics.jsonl", b'{"schema":1}\n{}\n', "was not written by counterpoise"),
        ("clients.jsonl", b'{"schema":1}\n{"round":1}\n', "is not what was written"),
        ("metrics.jsonl", b'{"schema":7}\n', "does not begin with schema 1"),
        ("metrics.jsonl", b"[1]\n", "does not begin with schema 1"),
        (
            "checkpoint/checkpoint.json",
            b'{"schema":1,"run":"x","round":"x","status":"","state":"","rows":{}}',
            "is damaged",
        ),
        (
            "checkpoint/checkpoint.json",
            b'{"schema":1,"run":"x","round":1,"status":"","state":"","rows":3}',
            "is damaged",
        ),
        ("config.toml", b"rounds = = 1", "is not valid TOML"),
        ("config.toml", b"rounds = 3", "the setting data is missing"),
    ],
)
def test_a_damaged_or_foreign_file_is_told_in_a_sentence(file: str, text: bytes, sentence: str, tmp_path: Path) -> None:
    cp.simulate("fedavg", federation(), out=tmp_path, **SETTINGS)
    (tmp_path / file).write_bytes(text)
    with pytest.raises(cp.CounterpoiseError, match=sentence):
        cp.resume(tmp_path)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine")
    with pytest.raises(cp.CounterpoiseError, match="is not empty"):
        cp.simulate("fedavg", federation(), out=tmp_path, **SETTINGS)
    assert (tmp_path / "metrics.jsonl").read_text() == "mine"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"method": cp.methods.fedavg}, "method must be made by"),
        ({"federation": None}, "federation must be made by"),
        ({"local": {"epochs": 2}}, "local must be made by"),
        ({"engine": "batched"}, "engine must be made by"),
        ({"model": lambda a, b: nn.Linear(a, b)}, "factory cannot be called with shape and classes alone"),
        ({"model": 3}, "model must be a module, a factory of one or a name"),
        ({"model": "lenet"}, "There is no model 'lenet'. Did you mean 'lenet5'"),
        ({"rounds": 2.0}, "rounds must be a whole number"),
    ],
)
def test_a_plain_mistake_in_python_is_told_in_a_sentence(given: dict[str, Any], sentence: str) -> None:
    settings: dict[str, Any] = {
        "method": "fedavg",
        "federation": federation(),
        "model": cp.models.mlp,
        "rounds": 1,
    } | given
    with pytest.raises(cp.CounterpoiseError, match=sentence):
        cp.simulate(settings.pop("method"), settings.pop("federation"), **settings)


def test_a_metric_that_was_never_measured_is_refused() -> None:
    run = cp.simulate("fedavg", federation(), model=cp.models.mlp, rounds=1)
    sentence = "There is no metric 'acc' in the rounds of this run. Did you mean 'accuracy'? Others: client_accuracy"
    for ask in (run.curve, run.last):
        with pytest.raises(cp.CounterpoiseError, match=re.escape(sentence)):
            ask("acc")
    assert [round for round, _ in run.curve("train_loss")] == [1]


def test_a_run_without_a_test_set_has_an_empty_curve() -> None:
    fed = cp.Federation.from_arrays(torch.randn(20, 2), torch.arange(20) % 2, partition=cp.iid(2))
    run = cp.simulate("fedavg", fed, model=cp.models.linear, rounds=1)
    assert (run.curve(), run.curve("loss"), run.last("loss"), run.accuracy) == ([], [], None, None)
    assert run.curve("personal_accuracy") == cp.measures.own_curve(run.rounds)
    assert run.last("personal_loss") == cp.measures.own_curve(run.rounds, "loss")[-1][1]
    with pytest.raises(
        cp.CounterpoiseError,
        match=r"There is no metric 'acc' .* Known: client_accuracy, client_loss, personal_accuracy, personal_loss, train_loss\.",
    ):
        run.curve("acc")
