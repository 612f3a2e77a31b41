"""Comparisons: a plan of arms and seeds, the workers that run it, and how the runs on disk stand to each other."""
