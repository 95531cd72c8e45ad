"""A training run: connects frames, model and engine.

`run` trains: `checks` refuses configs that do not fit, `parts` makes what a worker computes with, `rundir` is the
directory of a run, its state with the schedule, and its records, `init` starts from another model, `card` writes the
model card. `curves` reads what runs have recorded; `simulation` trains
with simulated workers; `unlabelled` trains without transcripts; `phone_errors` is the phone error rate on
held-out utterances. `neural_lm` trains neural language models.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.train.card import Scored as Scored, is_card as is_card, write_card as write_card
    from speech3.train.curves import (
        Asynchrony as Asynchrony,
        Curve as Curve,
        EfficiencyRow as EfficiencyRow,
        EfficiencyTable as EfficiencyTable,
        asynchrony as asynchrony,
        curve_of as curve_of,
        make_table as make_table,
        read_curve as read_curve,
        staleness_mean as staleness_mean,
        staleness_p95 as staleness_p95,
    )
    from speech3.train.init import FREE_KEYS as FREE_KEYS
    from speech3.train.neural_lm import TrainedNeural as TrainedNeural, train_neural as train_neural
    from speech3.train.run import train as train, with_workers as with_workers
    from speech3.train.rundir import (
        copy_model_files as copy_model_files,
        include_model as include_model,
        share_graphs as share_graphs,
    )
    from speech3.train.simulation import (
        BYTES_PER_GIGABIT as BYTES_PER_GIGABIT,
        MeasuredNetwork as MeasuredNetwork,
        Throughput as Throughput,
        own_strategies as own_strategies,
        preset_strategies as preset_strategies,
        simulate as simulate,
        throughput as throughput,
    )
    from speech3.train.unlabelled import pretrain as pretrain
else:
    __getattr__ = door(__file__)
