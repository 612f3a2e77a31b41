"""One function for each chart: a study in, a chart or the reason why there is none out."""
