"""Comparisons: a plan of arms and seeds, the workers that run it, and tables that compare runs on disk."""
