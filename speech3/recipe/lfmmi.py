"""The steps of a recipe's LF-MMI system: its HMM and denominator, its packed frames, its network.

OUT/tri/align/{train,dev}/labels.ark        phone labels of frames (`speech3.frames.segments`);
                                            in OUT/flat instead, if hmm.flat_start is lfmmi
OUT/lfmmi_hmm                               left biphones, denominator.safetensors, decoding graphs
OUT/frames/lfmmi/{train,heldout}.frames     packed frames, labelled with phones
OUT/lfmmi                                   the model directory
"""

import shutil
from pathlib import Path

import numpy as np

from speech3.config import TrainConfig
from speech3.errors import Speech3Error, check_bad
from speech3.frames.segments import segment_numbers, segment_starts
from speech3.hmm.alignment import Alignment
from speech3.hmm.clustering import phone_groups, read_phone_sets
from speech3.hmm.first_and_loop import convert, train_tree
from speech3.hmm.model import load_hmm
from speech3.hmm.sizes import biphone_leaves, lfmmi_passes
from speech3.hmm.transcript import NO_WORD
from speech3.io.ark import ArkReader, IntArkReader
from speech3.io.atomic import read_json, write_json
from speech3.io.computed import Computed
from speech3.io.progress import progress, say
from speech3.recipe.experiment import LFMMI, LFMMI_HMM, Experiment
from speech3.recipe.stages import More, pack_split, train_group
from speech3.sequence.denominator import make_denominator
from speech3.sequence.phone_lm import estimate

_MIN_LEAF_OUTPUTS = 30  # minimum number of training outputs (one per three frames) in a leaf of the tree
_TOO_SHORT = "too_short.json"


def train_hmm(e: Experiment) -> None:
    """Build the left-biphone tree on the alignment of the bootstrap, and estimate the phone language model."""
    assert e.recipe.lfmmi is not None
    out, lexicon = e.model(LFMMI_HMM), load_hmm(e.model(e.bootstrap)).lexicon
    feats = ArkReader(e.features(e.recipe.hmm.features, e.train) / "feats.scp")
    labels, too_short = IntArkReader(e.alignment(e.bootstrap, e.train) / "labels.ark"), {}
    for utterance, labels_T in progress(labels.items(), len(labels), "alignment for LF-MMI"):
        try:
            convert(_alignment(labels_T))
        except Speech3Error as error:
            too_short[utterance] = str(error)
            say(f"  skipped {utterance}: {error}")
    check_bad(too_short, len(labels), str(e.data(e.train)), "are too short for LF-MMI")
    used = dict.fromkeys(utterance for utterance in labels if utterance not in too_short)
    alignments = Computed(used, lambda utterance: convert(_alignment(labels[utterance])))
    leaves = e.recipe.lfmmi.leaves or biphone_leaves(e.hours, len(phone_groups(lexicon)))
    questions = e.recipe.hmm.extra_questions
    extra = read_phone_sets(questions, lexicon) if questions else []
    hmm = train_tree(alignments, feats, lexicon, leaves, _MIN_LEAF_OUTPUTS, extra, key="lfmmi.leaves")
    phones = Computed(used, lambda utterance: _alignment(labels[utterance]).phones.tolist())
    denominator = make_denominator(estimate(phones.values(), e.recipe.lfmmi.longer_histories), hmm)
    denominator.save(out)
    write_json(out / _TOO_SHORT, too_short)
    hmm.save(out)
    say(
        f"  {hmm.num_pdfs} pdfs; phone language model and denominator: {denominator.num_states:,} states,"
        f" {len(denominator.in_src_A):,} arcs"
    )


def _alignment(labels_T: np.ndarray) -> Alignment:
    phones = segment_numbers(labels_T).astype(np.int32)
    starts = np.append(segment_starts(labels_T), len(labels_T)).astype(np.int32)
    return Alignment(phones, np.full(len(phones), NO_WORD), starts, np.zeros(len(labels_T), np.int8), 0.0)


def pack_frames(e: Experiment, out: Path, more: More | None = None) -> None:
    """Pack features and phones of train (with `more` utterances) and dev into the directory `out`."""
    assert e.recipe.lfmmi is not None
    preset, dtype = e.feature_preset(LFMMI), e.recipe.lfmmi.training.dtype
    labels_of_phones = 2 * len(load_hmm(e.model(LFMMI_HMM)).lexicon.phones) + 2
    too_short = read_json(e.model(LFMMI_HMM) / _TOO_SHORT)
    for split, name in ((e.train, "train.frames"), ("dev", "heldout.frames")):
        labels = IntArkReader(e.alignment(e.bootstrap, split) / "labels.ark")
        info = {"alignment": e.bootstrap, "labels": "phones"}
        pack_split(e, split, preset, labels, labels_of_phones, out / name, dtype, info, too_short, more)
    shutil.copyfile(e.features(preset, e.train) / "features.yaml", out / "features.yaml")


def train_network(e: Experiment) -> None:
    """Train the network; the HMM and its graphs are copied into its model directory."""
    train_group(config_of(e, LFMMI), e.model(LFMMI), LFMMI)


def config_of(e: Experiment, name: str, more_h: float = 0.0) -> TrainConfig:
    """The training config of the system `name`, whose frames have `more_h` hours of speech in addition to train."""
    system = e.recipe.lfmmi
    assert system is not None
    training, start = e.fitting(system.training, system.features), e.start(LFMMI)
    if training != system.training:
        say(f"  {system.features} has no mel bins: training without frequency warps, masks and speeds")
    if system.passes is not None:
        hours = e.hours * (2 if e.recipe.augment else 1) + more_h
        passes = system.passes or lfmmi_passes(hours, started=start is not None)
        say(f"  {passes} passes over {60 * hours:.0f} minutes of speech (lfmmi.passes)")
        training = training.model_copy(update={"max_epochs": passes})
    return TrainConfig(
        frames=str(e.frames(name)), hmm=str(e.model(LFMMI_HMM)), model=system.model, training=training,
        init=str(start.directory) if start else None, seed=e.recipe.seed,
    )  # fmt: skip
