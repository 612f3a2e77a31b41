"""The answer in a few sentences: which method is best, by how much, how sure that is, and what the records show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from counterpoise import measures
from counterpoise.charts.style import elided
from counterpoise.comparisons.wording import tells, unit_of
from counterpoise.measures import (
    MOST_SEEDS,
    WILCOXON_FROM,
    Paired,
    Standing,
    best_two,
    is_share,
    metric_words,
    on_shared_seeds,
    seeds_needed,
)
from counterpoise.reports.study import Arm, Study, best_first, liars, verdicts

__all__ = ["answer", "liars_share", "marks"]

_TIED = "not told apart"
_REASONS = 2
"""The most reasons that the answer names."""


def answer(found: Study) -> list[str]:
    """Sentences for the top of the page."""
    standing = found.standing
    two = best_two(standing.rows, standing.lower)
    if two is None:
        done = any(group.done for group in found.groups)
        return [f"{'Nothing was measured' if done else 'No run finished'}, so there is no result."]
    if found.alone:
        return [_alone(found, two[0]), *_why(found, two[0].label, "")]
    told = list(_leads(two, standing.rows, standing.metric, standing.lower))
    own = best_two(standing.own, standing.lower)
    if own is not None:
        by_own = [*_leads(own, standing.own, standing.metric, standing.lower)]
        by_own[0] = f"By personal models: {by_own[0]}"
        told = [*by_own, f"By the server's model: {told[0]}"] if found.personal_first else [*told, by_own[0]]
    best, second, _ = two
    other = standing.baseline if standing.baseline != best.label else second.label if second else ""
    return [*told, *_why(found, best.label, other)]


def _called(label: str) -> str:
    """A label within a sentence, in brackets if commas would run into the sentence's."""
    return f"({elided(label)})" if ", " in label and "(" not in label else elided(label)


def _alone(found: Study, row: Standing) -> str:
    """Where a method ended that is compared with none."""
    unit, show = unit_of(found.standing.metric)
    reached = f"{show(row.mean)}{unit}"
    if not math.isnan(row.deviation):
        reached += f" ± {show(row.deviation)} over {len(row.values)} seeds"
    rounds = max(len(run.records) for arm in found.arms for run in arm.runs)
    after = f"after {rounds} round{'s' if rounds != 1 else ''}"
    return f"{_called(row.label)} ended with {metric_words(found.standing.metric)} {reached} {after}."


def _leads(
    two: tuple[Standing, Standing | None, Paired | None], rows: Sequence[Standing], metric: str, lower: bool
) -> Iterator[str]:
    """Who is best, by how much, and how sure that is."""
    best, second, beside = two
    unit, show = unit_of(metric)
    name, value = _called(best.label), f"{show(best.mean)}{unit}"
    reached, has = f"{metric_words(metric)} {value}", f"has the best {metric_words(metric)}, {value}"
    if second is None or beside is None:
        yield f"{name} alone has a result: {reached}."
        return
    points = " points" if is_share(metric) else ""
    lead, other = -beside.difference if lower else beside.difference, _called(second.label)
    tied = [label for label in _tied(rows, lower) if label != second.label]
    if not lead:
        level = [label for label in _level(best, rows) if label in tied]
        yield f"{_named([best.label, second.label, *level], 'and')} are level: {reached}."
        if rest := [label for label in tied if label not in level]:
            yield f"With these seeds they cannot be told from {_named(rest, 'or')}."
    elif lead < 0:
        yield f"{name} has the best mean, {reached}, but over the seeds that both have it is behind {other}."
    elif math.isnan(beside.p):
        seeds = "one seed" if beside.seeds == 1 else f"{beside.seeds} seeds that all differ alike"
        yield f"{name} {has}, {show(lead)}{points} ahead of {other} with {seeds}."
        yield f"That cannot be told from noise: compare at least {WILCOXON_FROM} seeds."
    else:
        low, high = (-beside.high, -beside.low) if lower else (beside.low, beside.high)
        tested = f"p = {beside.p:.2g}, {beside.seeds} seeds"
        if tells(beside, metric):
            tested = f"95 % interval {_spelt(low, show)} to {_spelt(high, show)}, {tested}"
        if low > 0:
            how = has if tied else f"is best: {reached}"
            yield f"{name} {how}, {show(lead)}{points} ahead of {other} ({tested})."
        else:
            yield f"{name} {has}, but its lead of {show(lead)}{points} over {other} cannot be told from noise ({tested})."
        if tied and low > 0:
            yield f"With these seeds it cannot be told from {_named(tied, 'or')}, whose seeds vary more."
        elif tied:
            yield f"Nor can it be told from {_named(tied, 'or')} with these seeds."
        if low <= 0:
            yield from _surely(best, rows, metric, lower)
        yield from _more(beside, low > 0)


def _surely(best: Standing, rows: Sequence[Standing], metric: str, lower: bool) -> Iterator[str]:
    """The lead over the best of the methods that are behind by more than noise."""
    _, show = unit_of(metric)
    points = " points" if is_share(metric) else ""
    for row in (rows[place] for place in best_first(rows, lower)):
        beside = _over_shared_seeds(best, row) if row.label != best.label else None
        if beside is not None and (low := -beside.high if lower else beside.low) > 0:
            high, lead = (-beside.low, -beside.difference) if lower else (beside.high, beside.difference)
            interval = f"95 % interval {_spelt(low, show)} to {_spelt(high, show)}"
            yield f"It is ahead of {_called(row.label)}, by {show(lead)}{points} ({interval})."
            return


def _named(labels: Sequence[str], word: str, most: int = 4) -> str:
    """A few names in a sentence; of many, the first and a count."""
    shown = [_called(label) for label in labels]
    shown = shown if len(shown) <= most else [*shown[: most - 1], f"{len(shown) - most + 1} more"]
    return f" {word} ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _tied(rows: Sequence[Standing], lower: bool) -> list[str]:
    """The labels whose difference from the best may be noise, the best first."""
    told = marks(rows, lower)
    return [rows[place].label for place in best_first(rows, lower) if told[place] == _TIED]


def _level(best: Standing, rows: Sequence[Standing]) -> list[str]:
    """The labels that have the best's mean over the seeds that all have."""
    means = {row.label: row.mean for row in on_shared_seeds(rows)}
    return [label for label, mean in means.items() if mean == means[best.label]]


def _spelt(value: float, show: Callable[[float], str]) -> str:
    return show(value).replace("-", "\N{MINUS SIGN}")


def _more(beside: Paired, sure: bool) -> Iterator[str]:
    """How many more seeds it would take."""
    if sure:
        more = WILCOXON_FROM - beside.seeds
        if more > 0:
            yield (
                f"{more} more seed{'s' if more > 1 else ''} would allow a test that does not assume normal differences."
            )
        return
    needed = seeds_needed(beside)
    if needed is None:
        yield f"More than {MOST_SEEDS:,} seeds would be needed if lead and spread stayed as they are."
        return
    needed = max(needed, beside.seeds + 1, WILCOXON_FROM)
    more = needed - beside.seeds
    yield f"If lead and spread stayed as they are, telling the first two apart would take {needed} seeds, {more} more."


def _why(found: Study, best: str, other: str) -> list[str]:
    """What the records show of the best method beside another: who had its weight, what it caught, whom it serves."""
    arms = {arm.label: arm for arm in found.arms}
    pair = [arms[label] for label in (best, other) if label in arms]
    if not pair or pair[0].label != best:
        return []
    recall, alarms = _flagged(pair[0])
    caught, told = _caught(pair[0].label, recall, alarms), [_worst(found, pair), _spread(pair)]
    told.insert(0 if recall or len(pair) < 2 else len(told), caught)  # no lie caught is no reason to be ahead
    return [one for one in (_liars(pair), *told) if one][:_REASONS]


def _beside(text: str, pair: Sequence[Arm], values: Sequence[str]) -> str:
    rest = f", against {values[1]} with {_called(pair[1].label)}" if len(values) > 1 else ""
    return f"With {_called(pair[0].label)}, {text.format(values[0])}{rest}."


def liars_share(arm: Arm) -> float:
    """The share of all weight that went to clients which an adversary played in that round; NaN if unknown."""
    weighed = [(r, r.outcome.weights) for run in arm.runs for r in run.records if r.outcome.weights]
    if not any(r.liars for r, _ in weighed):
        return math.nan
    theirs = sum(abs(weights.get(client, 0.0)) for r, weights in weighed for client in r.liars)
    every = sum(abs(weight) for _, weights in weighed for weight in weights.values())
    return theirs / every if every else math.nan


def _share(value: float) -> str:
    return f"{100 * value:.1f}".removesuffix(".0") + " %"


def _liars(pair: Sequence[Arm]) -> str:
    """How much weight liars had, unless that is the same in both."""
    shares = [liars_share(arm) for arm in pair]
    shown = [_share(share) for share in shares]
    if any(map(math.isnan, shares)) or (len(shown) > 1 and shown[0] == shown[1]):
        return ""
    return _beside("liars had {} of the weight", pair, shown)


def _flagged(arm: Arm) -> tuple[float, float]:
    """The shares of lies and of honest claims that it flagged, means over seeds; NaN if it judges none."""
    judged = [(verdicts(run.records), liars(run.records)) for run in arm.runs]
    found = [measures.detection(*one) for one in judged if one[0]]
    recalls, alarms = [d.recall for d in found], [d.false_alarms for d in found]
    mean = [measures.across_seeds([v for v in values if not math.isnan(v)])[0] for values in (recalls, alarms)]
    return mean[0], mean[1]


def _caught(label: str, recall: float, alarms: float) -> str:
    if math.isnan(recall):
        return ""
    honest = "" if math.isnan(alarms) else f" and {_share(alarms)} of honest claims"
    return f"{_called(label)} flagged {_share(recall)} of lies{honest}."


def _worst(found: Study, pair: Sequence[Arm]) -> str:
    unit, show = unit_of(found.standing.metric)
    rows = {row.label: row.measures["worst"] for row in found.standing.rows}
    values = [rows[arm.label] for arm in pair]
    words = metric_words(found.standing.metric)
    shown = [f"{show(value)}{unit}" for value in values]
    if not all(map(math.isfinite, values)) or (len(shown) > 1 and shown[0] == shown[1]):
        return ""
    return _beside(f"the worst served tenth of clients has {words} {{}}", pair, shown)


def _spread(pair: Sequence[Arm]) -> str:
    """How many clients count, if the two differ in that."""
    means = []
    for arm in pair:
        each = [n for run in arm.runs for _, n in measures.effective_clients(run.records) if math.isfinite(n)]
        means.append(measures.across_seeds(each)[0])
    if len(means) < 2 or any(map(math.isnan, means)) or f"{means[0]:.1f}" == f"{means[1]:.1f}":
        return ""
    return _beside("the weights count as {} equal clients a round", pair, [f"{mean:.1f}" for mean in means])


def marks(rows: Sequence[Standing], lower: bool) -> list[str]:
    """For each row: ``best``, `_TIED` if its difference from the best may be noise, or nothing."""
    two = best_two(rows, lower)
    if two is None or len(rows) < 2:
        return [""] * len(rows)
    return ["best" if row.label == two[0].label else _apart(row, two[0]) for row in rows]


def _apart(row: Standing, best: Standing) -> str:
    beside = _over_shared_seeds(row, best)
    return _TIED if beside is not None and beside.low <= 0 <= beside.high else ""


def _over_shared_seeds(one: Standing, other: Standing) -> Paired | None:
    """The paired difference over the seeds that both have; None below two of them."""
    shared = [s for s, v in one.values.items() if math.isfinite(v) and math.isfinite(other.values.get(s, math.nan))]
    if len(shared) < 2:
        return None
    return measures.paired([one.values[s] for s in shared], [other.values[s] for s in shared])
