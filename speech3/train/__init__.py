"""A training run: connects frames, model and engine.

`run` trains: `checks` refuses configs that do not fit, `parts` makes what a worker computes with, `rundir` is the
directory of a run, its state and its records, `schedule` the learning rate, `init`
starts from another model, `card` writes the model card. `curves` reads what runs have recorded; `simulation` trains
with simulated workers; `unlabelled` trains without transcripts; `phone_errors` is the phone error rate on
held-out utterances. `neural_lm` trains neural language models.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.train.card import Scored, write_card
    from speech3.train.curves import (
        Asynchrony,
        Curve,
        EfficiencyRow,
        EfficiencyTable,
        asynchrony,
        curve_of,
        make_table,
        read_curve,
        staleness_mean,
        staleness_p95,
    )
    from speech3.train.init import FREE_KEYS
    from speech3.train.neural_lm import TrainedNeural, train_neural
    from speech3.train.run import train, with_workers
    from speech3.train.rundir import copy_model_files, include_model, share_graphs
    from speech3.train.simulation import (
        BYTES_PER_GIGABIT,
        MeasuredNetwork,
        Throughput,
        own_methods,
        preset_methods,
        simulate,
        throughput,
    )
    from speech3.train.unlabelled import pretrain
else:
    __getattr__ = door(__file__)

__all__ = [
    "BYTES_PER_GIGABIT",
    "FREE_KEYS",
    "Asynchrony",
    "Curve",
    "EfficiencyRow",
    "EfficiencyTable",
    "MeasuredNetwork",
    "Scored",
    "Throughput",
    "TrainedNeural",
    "asynchrony",
    "copy_model_files",
    "curve_of",
    "include_model",
    "make_table",
    "own_methods",
    "preset_methods",
    "pretrain",
    "read_curve",
    "share_graphs",
    "simulate",
    "staleness_mean",
    "staleness_p95",
    "throughput",
    "train",
    "train_neural",
    "with_workers",
    "write_card",
]
