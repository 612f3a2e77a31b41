"""One function per chart: it takes a study and returns a chart, or the reason why there is none."""
