"""What the server sends to one client alone reaches that client and no other, wherever it trains."""

import pytest
import torch
from helpers import BACKENDS, ENGINES, Spy, blobs, double, postman, run, small
from played import play

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.rounds.lockstep import Lockstep
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.local import Local, sgd
from counterpoise.method import Part
from counterpoise.methods import avg

SIZES = [3, 9, 4, 13, 6, 9, 9, 5]
LOCAL = Local(epochs=2, batch=4, optimizer=sgd(0.1, momentum=0.5))


def simulation(seed=0, backend="per-client", sizes=SIZES, method=None, **settings):
    made = method or avg().adding(upload=postman())
    given = {"cohort": 5, "engine": double(backend=backend), "local": LOCAL} | settings
    return Simulation(made, blobs(sizes, proxy=8), small(), seed=seed, **given)


def read(cohort):
    """The letter that each client reports."""
    return dict(zip(cohort.ids, cohort.reports["postman"]["letter"].squeeze(1).tolist(), strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_client_reads_its_own_letter(backend):
    spy, heard = Spy(), {}
    made = simulation(backend=backend, adversary=spy, cohort=cp.stragglers(6, rate=0.3))
    for _ in range(6):
        made.advance()
        expected = {c: (c + 10 * heard[c]) / 1000 if c in heard else 0.0 for c in spy.cohorts[-1].ids}
        assert read(spy.cohorts[-1]) == pytest.approx(expected, abs=1e-15)
        heard |= {c: heard.get(c, 0) + 1 for c in spy.cohorts[-1].ids}
    assert len({*heard.values()}) > 1
    assert any(len(cohort) < 6 for cohort in spy.cohorts), "somebody asked should have dropped out"


def test_a_client_without_data_shifts_nobodys_letter():
    rows = [(torch.randn(n, 6).numpy(), (torch.arange(n) % 3).numpy()) for n in (4, 0, 5, 6)]
    federation = Federation.from_clients(rows, heldout=0)
    spy = Spy()
    made = Simulation(avg().adding(upload=postman()), federation, small(), engine=double(), adversary=spy)
    made.advance(), made.advance()
    assert read(spy.cohorts[1]) == pytest.approx({0: 0.01, 2: 0.012, 3: 0.013}, abs=1e-15)


def test_letters_do_not_depend_on_how_clients_are_trained():
    models = [run(simulation(engine=double(**engine)), 3) for engine in ENGINES]
    assert (models[0] - models[0].mean()).norm() > 0
    for model in models[1:]:
        assert torch.allclose(model, models[0], rtol=1e-10, atol=1e-12)


def test_a_captured_chunk_reads_the_letters_of_the_round(monkeypatch):
    play(monkeypatch)
    plain, captured = (simulation(engine=double(backend="batched", chunk=2)) for _ in range(2))
    captured.backend.captures = captured.overlaps = True
    assert torch.allclose(run(captured, 4), run(plain, 4), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_in_one_batch_keep_their_own_letters(backend):
    mine, joint = ([simulation(seed, backend, SIZES[: 8 - seed]) for seed in (0, 1, 2)] for _ in range(2))
    lockstep = Lockstep(joint)
    for _ in range(3):
        assert not [
            found for found in lockstep.advance([(one, False) for one in joint]) if isinstance(found, Exception)
        ]
    for one, other in zip(mine, joint, strict=True):
        assert torch.allclose(run(one, 3), other.server.model, rtol=1e-12, atol=1e-14)


def test_a_letter_counts_in_the_bytes_that_each_client_is_sent():
    with_letters, without = (simulation(method=method).advance() for method in (None, avg()))
    assert with_letters.bytes_down - without.bytes_down == 5 * 8  # five clients, one float64 each


def test_an_imagined_client_reads_the_letter_of_one_never_seen():
    seen = []
    rehearse = Part("rehearse", apply=lambda round: seen.append(round.world.rehearse([4, 7])) or round)
    run(simulation(method=avg().adding(upload=postman()).adding(trust=rehearse)), 2)
    for cohort in seen:
        assert cohort.reports["postman"]["letter"].tolist() == [[0.0], [0.0]]


def test_letters_have_a_row_for_each_client_and_a_record_to_be_written_from():
    record = {"client_record": lambda start: {"n": start.new_zeros(())}}
    short = Part("short", letters=lambda state, records: {"n": records["n"][:1]}, **record)
    with pytest.raises(CounterpoiseError, match=r"part short: its hook letters must return a row for each of the 5"):
        simulation(method=avg().adding(upload=short)).advance()
    wrong = Part("wrong", letters=lambda state, records: [1.0], **record)
    with pytest.raises(CounterpoiseError, match="part wrong: its hook letters must return a dictionary of tensors"):
        simulation(method=avg().adding(upload=wrong)).advance()
    with pytest.raises(CounterpoiseError, match="part bare has letters but keeps nothing about clients"):
        avg().adding(upload=Part("bare", letters=lambda state, records: {}))


@pytest.mark.parametrize(("forgets", "kept"), [(True, [0, 2, 0, 2]), (False, [1, 2, 1, 2])])
def test_a_later_part_sees_and_may_change_its_record_of_a_client_that_was_left_out(forgets, kept):
    def judge(round):
        return round.but(excluded={c: "even" for c in round.cohort.ids if c % 2 == 0 and round.world.round > 1})

    def count(round):
        seen.append(round.left_out["n"].tolist())
        gone = {"n": torch.zeros_like(round.left_out["n"])} if forgets else round.left_out
        return round.but(records={"n": round.records["n"] + 1}, left_out=gone)

    seen = []
    counter = Part("counter", client_record=lambda start: {"n": start.new_zeros(())}, apply=count)
    method = avg().adding(trust=Part("judge", apply=judge)).adding(weigh=counter)
    made = simulation(method=method, sizes=[5, 5, 5, 5], cohort=None)
    made.advance(), made.advance()
    assert seen == [[], [1.0, 1.0]]
    assert [float(made.server.records["counter"][c]["n"]) for c in range(4)] == kept
