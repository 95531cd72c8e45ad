"""What was achieved: error rates, their intervals, and reports about corpora, models and runs.

`wer` aligns and counts, with bootstrap intervals and paired tests, and judges confidences; `text` and `formats` read
references and hypotheses; `boundaries` judges times. `page` is the HTML report, with `figures` and
`html`; `comparison` lays runs beside each other; `run_watch` follows one in a terminal; `inspection` and `picture`
show a file; `doctor` examines the machine.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.evaluate import comparison as comparison, tables as tables
    from speech3.evaluate.alignment_page import (
        Checked as Checked,
        drawn as drawn,
        write_alignment_page as write_alignment_page,
    )
    from speech3.evaluate.boundaries import (
        compare as compare,
        compare_boundaries as compare_boundaries,
        level_in_name as level_in_name,
        read_times as read_times,
        table as table,
    )
    from speech3.evaluate.comparison import (
        print_table as print_table,
        throughput_text as throughput_text,
        write_curves as write_curves,
        write_throughput as write_throughput,
    )
    from speech3.evaluate.doctor import environment_facts as environment_facts, examine_machine as examine_machine
    from speech3.evaluate.figures import AlignedUtterance as AlignedUtterance, write_histograms as write_histograms
    from speech3.evaluate.html import encode_clip as encode_clip
    from speech3.evaluate.inspection import inspect as inspect, picture_path as picture_path
    from speech3.evaluate.page import (
        PICTURES_SHOWN as PICTURES_SHOWN,
        WORST_SHOWN as WORST_SHOWN,
        Report as Report,
        SplitVolume as SplitVolume,
        Suspect as Suspect,
        Suspects as Suspects,
        System as System,
        UnknownWords as UnknownWords,
        UtteranceMaterial as UtteranceMaterial,
        best_of as best_of,
        write_report as write_report,
    )
    from speech3.evaluate.picture import write_picture as write_picture
    from speech3.evaluate.run_watch import watch as watch
    from speech3.evaluate.tables import confidence_lines as confidence_lines, write_scores as write_scores
    from speech3.evaluate.text import (
        ERROR_RATES as ERROR_RATES,
        PHONE_CLASSES as PHONE_CLASSES,
        Texts as Texts,
        find_speakers as find_speakers,
        read_all as read_all,
        read_ids as read_ids,
        read_text as read_text,
    )
    from speech3.evaluate.units import draw_unit as draw_unit
    from speech3.evaluate.wer import (
        Metric as Metric,
        PairedTest as PairedTest,
        Score as Score,
        paired_test as paired_test,
        reliability_beside as reliability_beside,
        score as score,
    )
else:
    __getattr__ = door(__file__)
