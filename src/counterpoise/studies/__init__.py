"""Studies: experiments in cells, run together, and held against what was published."""
