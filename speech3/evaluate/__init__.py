"""What was achieved: error rates, their intervals, and reports about corpora, models and runs.

`wer` aligns and counts, with bootstrap intervals and paired tests; `text` and `formats` read references and
hypotheses; `confidence` and `boundaries` judge confidences and times. `page` is the HTML report, with `figures` and
`html`; `comparison` lays runs beside each other; `run_watch` follows one in a terminal; `inspection` and `picture`
show a file; `doctor` examines the machine.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.evaluate import comparison, tables
    from speech3.evaluate.alignment_page import Checked, drawn, write_alignment_page
    from speech3.evaluate.boundaries import compare, compare_boundaries, level_in_name, read_times, table
    from speech3.evaluate.comparison import print_table, throughput_text, write_curves, write_throughput
    from speech3.evaluate.confidence import confidence_lines, reliability_beside
    from speech3.evaluate.doctor import environment_facts, examine_machine
    from speech3.evaluate.figures import AlignedUtterance, write_histograms
    from speech3.evaluate.html import encode_clip
    from speech3.evaluate.inspection import inspect, picture_path
    from speech3.evaluate.page import (
        PICTURES_SHOWN,
        WORST_SHOWN,
        Report,
        SplitVolume,
        Suspect,
        Suspects,
        System,
        UnknownWords,
        UtteranceMaterial,
        best_of,
        write_report,
    )
    from speech3.evaluate.picture import write_picture
    from speech3.evaluate.run_watch import watch
    from speech3.evaluate.tables import write_scores
    from speech3.evaluate.text import ERROR_RATES, PHONE_CLASSES, Texts, find_speakers, read_all, read_ids, read_text
    from speech3.evaluate.units import draw_unit
    from speech3.evaluate.wer import Metric, PairedTest, Score, paired_test, score
else:
    __getattr__ = door(__file__)

__all__ = [
    "ERROR_RATES",
    "PHONE_CLASSES",
    "PICTURES_SHOWN",
    "WORST_SHOWN",
    "AlignedUtterance",
    "Checked",
    "Metric",
    "PairedTest",
    "Report",
    "Score",
    "SplitVolume",
    "Suspect",
    "Suspects",
    "System",
    "Texts",
    "UnknownWords",
    "UtteranceMaterial",
    "best_of",
    "compare",
    "compare_boundaries",
    "comparison",
    "confidence_lines",
    "draw_unit",
    "drawn",
    "encode_clip",
    "environment_facts",
    "examine_machine",
    "find_speakers",
    "inspect",
    "level_in_name",
    "paired_test",
    "picture_path",
    "print_table",
    "read_all",
    "read_ids",
    "read_text",
    "read_times",
    "reliability_beside",
    "score",
    "table",
    "tables",
    "throughput_text",
    "watch",
    "write_alignment_page",
    "write_curves",
    "write_histograms",
    "write_picture",
    "write_report",
    "write_scores",
    "write_throughput",
]
