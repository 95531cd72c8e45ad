"""WER and CER with intervals and significance tests, per-speaker tables, comparisons of runs, and the HTML report."""
