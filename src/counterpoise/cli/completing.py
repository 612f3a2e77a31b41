"""What the shell offers when a user presses Tab. Nothing here loads torch: an answer is due at once."""

from __future__ import annotations

from counterpoise.presets import preset_names

__all__ = ["complete_data_set", "complete_method", "complete_methods", "complete_preset", "complete_setting"]


def complete_preset(incomplete: str) -> list[str]:
    """The presets that begin so. If there is none, the shell offers files."""
    return [name for name in preset_names() if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[tuple[str, str]]:
    """The methods that begin so, each with its sentence, which some shells show."""
    from counterpoise.cli.overview import grouped_methods

    lines = sorted(line for lines in grouped_methods().values() for line in lines)
    return [(line.name, line.sentence) for line in lines if line.name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """The methods that continue a list such as ``fedavg,fedp``."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name, _ in complete_method(last)]


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """The keys of a TOML file that begin so, each with ``=``; after ``method=``, the methods."""
    from counterpoise.cli.settings import setting_keys

    key, equals, value = incomplete.partition("=")
    if equals:
        return [(f"{key}={name}", about) for name, about in complete_method(value)] if key == "method" else []
    return [(f"{name}=", about) for name, about in setting_keys(incomplete).items()]


def complete_data_set(incomplete: str) -> list[str]:
    """The data sets that begin so."""
    from counterpoise.federation.catalogue import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]
