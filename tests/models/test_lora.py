"""Low-rank adapters: what a layer computes, what is trained, and that the frozen base is held once."""

import math
import tomllib
from functools import partial

import pytest
import torch
from helpers import BACKENDS, blobs, by_torch, double, flat, fresh, net
from torch import nn

import counterpoise as cp
from counterpoise.comparisons.collection import groups, read_run, run_folders
from counterpoise.engine import Simulation
from counterpoise.engine.rounds.lockstep import why_apart
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, sgd
from counterpoise.methods import avg
from counterpoise.models import merge_lora, with_lora
from counterpoise.models.copies import sharing_copy
from counterpoise.models.digests import form_digest, frozen_digest
from counterpoise.runs.build import _fingerprinted, differences
from counterpoise.runs.config import parse

SIZES = [9, 4, 13]


class Conv1D(nn.Module):
    """As in Hugging Face's GPT-2: the weight is ``[in, out]``."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.weight, self.bias = nf, nn.Parameter(torch.zeros(nx, nf)), nn.Parameter(torch.zeros(nf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


def layers() -> nn.Module:
    return fresh(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), Conv1D(4, 5), nn.Tanh(), nn.Linear(4, 3)))


def adapted(model: nn.Module, **options) -> nn.Module:
    """With adapters that are not zero."""
    made = with_lora(model, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if name.endswith(("up", "down")):
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return made


def trained(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad]


def test_a_copy_begins_as_the_model_and_leaves_it_as_it_was():
    model, x = layers(), torch.randn(7, 6, dtype=torch.float64)
    model[4].bias.requires_grad_(False)
    before = [p.clone() for p in model.parameters()]
    made = with_lora(model, rank=2)
    assert torch.equal(made(x), model(x))
    assert [p.requires_grad for p in model.parameters()] == [True] * 5 + [False]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(float(made[place].down.detach().abs().min()) > 0 for place in (0, 2, 4))


@pytest.mark.parametrize(("alpha", "scale"), [(None, 1.0), (6, 3.0)])
def test_a_layer_adds_its_low_rank_term(alpha, scale):
    model, x = layers(), torch.randn(7, 6, dtype=torch.float64)
    made = adapted(model, rank=2, alpha=alpha)
    hidden = x
    for place, weight in ((0, model[0].weight), (2, model[2].weight.T), (4, model[4].weight)):
        whole = weight + scale * made[place].up @ made[place].down
        hidden = hidden @ whole.T + model[place].bias
        hidden = hidden if place == 4 else hidden.tanh()
        assert torch.allclose(made[place].weight.T if place == 2 else made[place].weight, whole, rtol=1e-13)
        assert made[place].bias is made[place].base.bias
    assert torch.allclose(made(x), hidden, rtol=1e-12, atol=1e-12)


def test_attention_reads_the_weight_with_its_adapter():
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(4, 2, batch_first=True).double(), torch.randn(2, 3, 4, dtype=torch.float64)
    made = adapted(attention, rank=1)
    plain = sharing_copy(attention)
    with torch.no_grad():
        plain.out_proj.weight += made.out_proj.up @ made.out_proj.down
    assert trained(made) == ["out_proj.down", "out_proj.up"]
    assert torch.allclose(made(x, x, x)[0], plain(x, x, x)[0], rtol=1e-12)


def test_adapters_and_what_is_named_are_trained():
    assert trained(with_lora(layers(), 2)) == [f"{place}.{half}" for place in (0, 2, 4) for half in ("down", "up")]
    assert trained(with_lora(layers(), 2, ["[02]"], train="up")) == ["0.up", "2.up"]
    model = layers().requires_grad_(False)
    made = with_lora(model, 2, whole="4")  # a layer that was frozen, too
    assert trained(made) == ["0.down", "0.up", "2.down", "2.up", "4.weight", "4.bias"]
    assert made[4].weight.data_ptr() != model[4].weight.data_ptr()
    assert made[0].base.weight.data_ptr() == model[0].weight.data_ptr()
    assert trained(with_lora(nn.Linear(3, 2), 1)) == ["down", "up"]


def test_the_mean_of_adapters_is_the_adapter_of_the_mean_if_one_factor_is_trained():
    one, two, mean = (with_lora(layers(), 2, "0", train="up") for _ in range(3))
    two[0].down.copy_(one[0].down)
    mean[0].down.copy_(one[0].down)
    with torch.no_grad():
        for made in (one, two):
            made[0].up.normal_()
        mean[0].up.copy_((one[0].up + two[0].up) / 2)
    assert torch.allclose(mean[0].weight, (one[0].weight + two[0].weight) / 2, rtol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cohorts_adapters_train_as_in_a_plain_loop(backend):
    federation, model = blobs(SIZES), adapted(net(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), rank=2)
    local = Local(epochs=2, batch=4, optimizer=sgd(0.1, momentum=0.5))
    simulation = Simulation(avg(), federation, model, local=local, seed=3, engine=double(backend=backend))
    ends = []
    for client in range(3):
        alone = sharing_copy(model)
        by_torch(
            alone,
            federation,
            client,
            lambda p, lr: torch.optim.SGD([q for q in p if q.requires_grad], lr, momentum=0.5),
            local,
            1,
            seed=3,
        )
        ends.append(flat(alone))
    simulation.advance()
    assert torch.allclose(simulation.server.model, torch.stack(ends).mean(0), rtol=1e-10, atol=1e-12)
    assert len(simulation.server.model) == 2 * (6 + 5) + 2 * (5 + 3)


class Masked(nn.Module):
    """A frozen layer, and a mask that is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 3)
        self.register_buffer("mask", torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x).tanh() * self.mask)


def networks(simulation: Simulation) -> list[nn.Module]:
    """The copies of the model that a run computes with."""
    backend = simulation.backend
    if hasattr(backend, "network"):
        return [backend._evaluate.module, backend.network.module]
    return [backend._evaluate.module, backend._pool.submit(lambda: backend._own.network.module).result()]


def places(modules: list[nn.Module], dtype: torch.dtype | None = None) -> dict[str, int]:
    """In how many places each frozen parameter and each buffer lies."""
    found: dict[str, set[int]] = {}
    for made in modules:
        frozen = [(name, p) for name, p in made.named_parameters() if not p.requires_grad]
        for name, held in (*frozen, *made.named_buffers()):
            assert dtype is None or held.dtype == dtype
            found.setdefault(name, set()).add(held.data_ptr())
    return {name: len(each) for name, each in found.items()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_frozen_base_is_held_once(backend):
    model = fresh(Masked())
    simulation = Simulation(avg(), blobs(SIZES), model, engine=double(backend=backend))
    simulation.advance()
    held = [model, simulation.trainer.module, *networks(simulation)]
    assert len({id(made) for made in held}) == 4
    assert places(held) == {"layer.weight": 1, "layer.bias": 1, "mask": 1}
    assert places([model, simulation.trained()]) == {"layer.weight": 1, "layer.bias": 1, "mask": 2}


@pytest.mark.parametrize("bf16", [False, True])
def test_another_precision_has_one_base_for_all_networks_of_all_runs(bf16):
    model = Masked()  # float32
    engine = cp.Engine(device="cpu", bf16=True) if bf16 else double(backend="batched")
    runs = [Simulation(avg(), blobs(SIZES), model, engine=engine, seed=seed) for seed in (0, 1)]
    made = [network for run in runs for network in networks(run)]
    once = {"layer.weight": 1, "layer.bias": 1, "mask": 1}
    assert len(made) == 4
    assert places(made, torch.bfloat16 if bf16 else torch.float64) == once
    assert places([run.trainer.module for run in runs]) == once
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_base_in_half_precision_is_trained_in_the_engines(dtype):
    base = layers().to(dtype)
    mixed = with_lora(base, 2, whole="4")
    for p in mixed.parameters():
        p.data = p.data.double() if p.requires_grad else p.data  # adapters and head are wider than the base
    runs = [Simulation(avg(), blobs(SIZES), model, engine=double()) for model in (mixed, sharing_copy(mixed).double())]
    for run in runs:
        run.advance()
    assert torch.equal(runs[0].server.model, runs[1].server.model)
    assert runs[0].server.model.dtype == torch.float64


def test_a_model_whose_halves_round_differently_alone_and_in_a_batch_is_taken():
    class Rounding(nn.Linear):
        """As kernels for half precision may, it sums one sample otherwise than two."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1 + torch.finfo(x.dtype).eps * len(x))

    model = nn.Sequential(nn.Linear(6, 5), Rounding(5, 3)).bfloat16()
    assert Simulation(avg(), blobs(SIZES), model, engine=double()).trainer.layout.size == 35 + 18


def test_merging_gives_the_layers_that_the_model_had():
    model, x = layers(), torch.randn(7, 6, dtype=torch.float64)
    made = adapted(model, rank=2, alpha=3)
    before = made[0].base.weight.clone()
    merged = merge_lora(made)
    assert [type(layer).__name__ for layer in merged] == [type(layer).__name__ for layer in model]
    assert torch.allclose(merged(x), made(x), rtol=1e-12, atol=1e-12)
    assert torch.equal(made[0].base.weight, before)
    assert trained(merged) == [name for name, _ in model.named_parameters()]


def test_a_layer_used_at_two_places_has_one_adapter():
    layer, x = nn.Linear(4, 4).double(), torch.randn(3, 4, dtype=torch.float64)
    made = adapted(nn.Sequential(layer, nn.Tanh(), layer), rank=1, where="2")
    whole = layer.weight + made[0].up @ made[0].down
    assert made[0] is made[2]
    assert torch.allclose(made(x), torch.tanh(x @ whole.T + layer.bias) @ whole.T + layer.bias, rtol=1e-12)
    merged = merge_lora(made)
    assert merged[0] is merged[2]
    assert torch.allclose(merged(x), made(x), rtol=1e-12)


def test_adapters_draw_the_same_numbers_in_the_models_order():
    model, made = layers(), []
    for where in ("*", ["4", "2", "0"]):
        torch.manual_seed(0)
        made.append(with_lora(model, 2, where))
    torch.manual_seed(0)
    first = torch.empty(2, 6, dtype=torch.float64)
    nn.init.kaiming_uniform_(first, a=math.sqrt(5))
    assert torch.equal(made[0][0].down, first)
    for one, other in zip(*(m.parameters() for m in made), strict=True):
        assert torch.equal(one, other)


def test_runs_with_other_scales_do_not_train_as_one():
    def started(alpha):
        torch.manual_seed(0)
        model = with_lora(net(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), 1, alpha=alpha)
        return Simulation(avg(), blobs(SIZES), model, engine=double())

    assert why_apart(started(1), started(1)) == ""
    assert why_apart(started(1), started(2)) == "their models differ"


def test_a_run_with_another_scale_is_not_gone_on_with(tmp_path):
    def run(alpha, rounds):
        torch.manual_seed(0)
        model = with_lora(net(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), 1, alpha=alpha)
        return cp.simulate("avg", blobs(SIZES), model=model, rounds=rounds, out=tmp_path / "run", engine=double())

    first = run(1, 1)
    assert run(1, 1).status == "finished"
    with pytest.raises(CounterpoiseError, match="the model has other layers, or layers of other sizes or settings"):
        run(2, 1)
    torch.manual_seed(0)
    other = _fingerprinted(with_lora(net(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), 1, alpha=2))
    for key in ("form", "fingerprint"):
        assert first.settings["model"][key] != other[key]


def based(change=0.0, rank=1, seed=0, **options) -> nn.Module:
    """Adapters drawn from a seed on a base in which one number is changed."""
    base = layers()
    with torch.no_grad():
        base[2].weight[1, 1] += change
    torch.manual_seed(seed)
    return with_lora(base, rank, **options)


def test_a_digest_of_frozen_weights_sees_every_number_and_name(monkeypatch):
    digest = frozen_digest(based())
    assert digest == frozen_digest(based(seed=1)) == frozen_digest(based(rank=2))
    assert digest != frozen_digest(based(1e-12))
    assert len({digest, frozen_digest(nn.Sequential(based())), frozen_digest(based().float()), ""}) == 4
    assert frozen_digest(layers()) == ""
    monkeypatch.setattr("counterpoise.flat._PIECE", 24)
    assert frozen_digest(based()) == digest
    up = {"train": "up"}  # the random factor is frozen, too
    assert frozen_digest(based(**up)) != frozen_digest(based(seed=1, **up))
    assert frozen_digest(based(**up), drawn=False) == frozen_digest(based(seed=1, **up), drawn=False) == digest


def test_a_digest_of_the_form_sees_sizes_settings_and_what_is_trained():
    forms = [based(), based(rank=2), based(alpha=2), based(train="up"), based(where="0"), layers()]
    assert len({*map(form_digest, forms)}) == len(forms)
    assert form_digest(based()) == form_digest(based(1.0, seed=1))


def test_runs_with_other_ranks_or_another_base_are_not_pooled(tmp_path):
    def run(name, seed, model):
        cp.simulate(
            "avg", blobs(SIZES), model=model, seed=seed, rounds=1, out=tmp_path / f"{name}{seed}", engine=double()
        )

    for seed in (0, 1):
        run("given", seed, based(seed=seed, train="up"))
        run("made", seed, lambda: with_lora(layers(), 1))
        run("wide", seed, based(rank=2, seed=seed))
        run("other", seed, based(0.5, seed=seed))
    found = groups(map(read_run, run_folders([tmp_path])))
    assert sorted([run.path.name for run in group.runs] for group in found) == [
        [f"{name}{seed}" for seed in (0, 1)] for name in ("given", "made", "other", "wide")
    ]


def test_a_run_of_an_older_version_is_gone_on_with(tmp_path):
    run = partial(cp.simulate, "avg", blobs(SIZES), model=based(), rounds=1, out=tmp_path / "run", engine=double())
    run()
    with pytest.raises(CounterpoiseError, match=r"configuration: the model's frozen weights are others\. Choose"):
        run(model=based(1.0))
    config = tmp_path / "run" / "config.toml"
    kept = parse(tomllib.loads(config.read_text()), "it")
    plain = {key: value for key, value in kept.plain().items() if key != "frozen"}
    del plain["model"]["form"]
    assert differences(parse(plain, "it"), kept) == []
    assert [key for key, _, _ in differences(kept, parse(plain | {"frozen": "x"}, "it"))] == ["frozen", "model.form"]


def test_a_model_begun_with_has_the_same_frozen_weights():
    simulation = Simulation(avg(), blobs(SIZES), with_lora(net(nn.Linear(6, 3)), 1), engine=double())
    known = simulation.trainer.module.state_dict()
    writes = {name: tensor._version for name, tensor in known.items()}
    given = {name: tensor + 1 for name, tensor in known.items()}
    with pytest.raises(CounterpoiseError, match=r"initial_arrays has another '0.base.[a-z]+' than the model"):
        simulation.loop.begin_with(given)
    simulation.loop.begin_with(given | {name: tensor for name, tensor in known.items() if "base" in name})
    assert torch.equal(simulation.server.model, torch.cat([given["0.down"].flatten(), given["0.up"].flatten()]))
    assert {name: tensor._version for name, tensor in known.items()} == writes


def test_a_merged_model_is_no_alias():
    made = adapted(nn.Linear(3, 2), rank=1)
    merged = merge_lora(made)
    with torch.no_grad():
        merged.weight.zero_()
        merged.bias.zero_()
    assert all(float(p.detach().abs().max()) > 0 for p in made.base.parameters())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rank": 0}, "rank must be a whole number from 1 on, not 0"),
        ({"rank": True}, "rank must be a whole number"),
        ({"alpha": -1}, "alpha must be a positive number, not -1"),
        ({"alpha": math.inf}, "alpha must be a positive number"),
        ({"train": "down"}, "train must be 'both' or 'up', not 'down'"),
        ({"where": "attention"}, "where='attention' matches no linear layer. There are: 0, 2, 4."),
        ({"where": ["0", "1"]}, "where='1' matches no linear layer"),
        ({"where": 3}, "where must be a pattern of layers' names or a list, not 3"),
        ({"whole": "head"}, "whole='head' matches no layer. There are: 0, 1, 2, 3, 4."),
        ({"where": "4", "whole": "4"}, "so there is no adapter"),
        ({"ranks": 2}, "ranks"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence):
    with pytest.raises(CounterpoiseError) as caught:
        with_lora(layers(), **options)
    assert sentence in str(caught.value)


def test_only_a_module_without_adapters_is_taken():
    with pytest.raises(CounterpoiseError, match="layers that do not know their sizes yet"):
        with_lora(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(CounterpoiseError, match=r"with_lora takes a module, such as .*, not 'gpt2'"):
        with_lora("gpt2")
    with pytest.raises(CounterpoiseError, match=r"merge_lora takes a module, such as run.model"):
        merge_lora(None)
    with pytest.raises(CounterpoiseError, match="has adapters already"):
        cp.models.with_lora(with_lora(layers()))
