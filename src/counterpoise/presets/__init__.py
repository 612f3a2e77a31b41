"""Ready-made experiments, one TOML file each."""
