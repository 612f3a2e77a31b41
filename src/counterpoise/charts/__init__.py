"""How charts look, and those that need nothing but numbers. Plotly draws them, and is imported only then."""
