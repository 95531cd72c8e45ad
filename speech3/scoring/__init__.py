"""From words to figures: WER and CER with intervals, significance, per-speaker tables, and the HTML report."""
