"""SCAFFOLD: control variates that take each client's drift out of its steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning, ICML 2020, eq. 3-5 and Algorithm 1.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Client, Method, Part, Reply, Round, Step, World
from counterpoise.methods.registry import METHODS
from counterpoise.parts import by_data, mean, mean_gradient, server_step, uniform
from counterpoise.registry import Option, Paper

__all__ = ["scaffold"]

PAPER = Paper(
    "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    "Karimireddy et al.",
    2020,
    "arXiv:1910.06378",
)

Variate = Literal["II", "I"]
Weights = Literal["uniform", "data", "mixed"]
Correct = Literal["gradient", "step"]
Start = Literal["zero", "model"]


@METHODS.register("scaffold", group="drift", paper=PAPER)
def scaffold(
    option: Annotated[
        Variate,
        Option("a client's variate: II, its mean gradient over its steps; I, its full gradient at the server's model"),
    ] = "II",
    weights: Annotated[
        Weights,
        Option("weights in the update and in the variate: equal, as in the paper; by data; or mixed: the update alone"),
    ] = "uniform",
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
    correct: Annotated[
        Correct,
        Option("what a variate corrects: the gradient, as in the paper, or the model after the optimiser's step"),
    ] = "gradient",
    start: Annotated[
        Start,
        Option("where all variates start: at zero, as in the paper, or at the initial model, as others' code has it"),
    ] = "zero",
) -> Method:
    """Control variates that correct every local step for the client's drift.

    Local steps along ``g - c_i + c`` (eq. 3), ``w <- w + lr mean_S d_i``, ``c <- c + |S|/N mean_S dc_i`` (eq. 5). By
    data, ``c = sum_j n_j c_j / (N n)``, with n the mean of the n_j seen. Mixed weighs the updates by data and the
    changes of variates equally, as NIID-Bench does.
    """
    if start == "model" and weights == "data":
        raise CounterpoiseError('method scaffold: start="model" is for weights="uniform" or "mixed".')
    return Method(
        "scaffold",
        weigh=(uniform() if weights == "uniform" else by_data(),),
        combine=(mean(),),
        update=(server_step(lr), control_variates(option, weights, correct, start)),
    )


def control_variates(option: Variate, weights: Weights, correct: Correct = "gradient", start: Start = "zero") -> Part:
    """The variates c (server) and c_i (client), and what they do to a step.

    c must be a function of the c_i alone, or it drifts for good. The server sees only changes of c_i, so c weighs each
    client by the first data count the server accepted, whatever it claims later.

    Option I: ``c_i <- grad F_i(w_t)``, one more pass over the data. Option II: ``c_i <- c_i - c + (w_t - w_i)/(K eta)``
    (eq. 4). With plain SGD, dividing by K eta gives the mean gradient. With momentum the divisor is ``|a|_1 eta``,
    FedNova's norm; otherwise the variates would be up to 1/(1 - momentum) times too large and the run would diverge.
    Adam has no such norm.

    If they correct the model after the optimiser's step, ``w <- w - eta (c - c_i)``, momentum does not enlarge them
    (NIID-Bench, NVFlare). Option II then divides by K eta for every optimiser: a variate is a mean move over eta.
    """

    heads, after = weights != "data", correct == "step"
    first = torch.zeros_like if start == "zero" else torch.clone

    def begin(client: Client) -> dict[str, Tensor]:
        return {"full": torch.zeros_like(client.start)}

    def survey(client: Client, step: Step) -> dict[str, Tensor]:
        share = step.examples / client.examples
        return {"full": client.memo["full"] + share * step.gradient_at(client.start)}

    def gradient(client: Client, step: Step, g: Tensor) -> Tensor:
        return g - client.state["c"] + client.broadcast["c"]

    def move(client: Client, step: Step, w: Tensor) -> Tensor:
        return w - client.lr * (client.broadcast["c"] - client.state["c"])

    def mean_move(client: Client, reply: Reply) -> Tensor:
        return -reply.trained / (client.steps * client.lr) if after else mean_gradient(client, reply)

    def finish(client: Client, reply: Reply) -> Reply:
        own = client.state["c"]
        new = client.memo["full"] if option == "I" else own - client.broadcast["c"] + mean_move(client, reply)
        return Reply(reply.update, {"change": new - own}, {"c": new})

    def server_state(start: Tensor) -> dict[str, Tensor]:
        none = start.new_zeros((), dtype=torch.float64)
        counts = {} if heads else {"seen": none, "counts": none.clone()}
        return {"c": first(start), **counts}

    def check(world: World) -> None:
        if option == "II" and not after and world.local.optimizer.reach is None:
            raise CounterpoiseError(
                "SCAFFOLD's option II needs a local optimiser that is linear in the gradients, such as sgd. "
                'Use scaffold(option="I") with this one, or --set method.option=I.'
            )

    return Part(
        "control-variates",
        server_state=server_state,
        client_record=None if heads else lambda start: {"n": start.new_zeros((), dtype=torch.float64)},
        client_state=lambda start: {"c": first(start)},
        when_lost=f"its variate starts at {start if start == 'zero' else 'the initial model'} again",
        begin=begin if option == "I" else None,
        survey=survey if option == "I" else None,
        gradient=None if after else gradient,
        move=move if after else None,
        finish=finish,
        broadcast=lambda state: {"c": state["c"]},
        apply=_by_heads if heads else _by_counts,
        by_counts=not heads,
        check=check,
    )


def _by_heads(round: Round) -> Round:
    """The server's half if all clients count equally."""
    return round.but(state={"c": round.state["c"] + round.reports["change"].sum(0) / round.world.population})


def _by_counts(round: Round) -> Round:
    """The server's half if clients count by their data."""
    state, known, n = round.state, round.records["n"], round.cohort.examples.double()
    n = torch.where(known > 0, known, n)
    seen = {"seen": state["seen"] + (known == 0).sum(), "counts": state["counts"] + n[known == 0].sum()}
    before, now = (s["counts"] / s["seen"].clamp(min=1) * round.world.population for s in (state, seen))
    c = before / now * state["c"] + (n / now).to(round.model.dtype) @ round.reports["change"]
    return round.but(state={"c": c, **seen}, records={"n": n})
