"""How a cohort is trained (one client at a time, as one batch, or spread over processes), and how that is chosen."""
