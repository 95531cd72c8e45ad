"""The steps of a recipe's flat start without GMMs, hmm.flat_start=lfmmi: from transcripts to an alignment.

Hadian et al. 2018, "End-to-end speech recognition using lattice-free MMI". A small network with two outputs for each
group of phones, independent of context, is trained with LF-MMI on whole utterances (`speech3.sequence.transcripts`).
It then makes the alignment in place of the triphones.

OUT/flat_hmm                              two pdfs for each group of phones, denominator.safetensors
OUT/frames/flat/{train,heldout}.frames    packed frames, labelled with words
OUT/flat                                  the model directory; align/{train,dev}, as for the triphones
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from speech3.alignment.align import Transcripts, usable_transcripts
from speech3.config import TrainConfig
from speech3.corpus.datadir import read_datadir
from speech3.errors import Speech3Error, check_bad
from speech3.frames.packed import pack
from speech3.hmm.clustering import group_numbers
from speech3.hmm.first_and_loop import SUBSAMPLING
from speech3.hmm.model import Hmm
from speech3.hmm.topology import FIRST_AND_LOOP
from speech3.hmm.tree import monophone_tree
from speech3.io.ark import ArkReader
from speech3.io.computed import Computed
from speech3.io.progress import say
from speech3.lexicon.lexicon import Lexicon
from speech3.recipe.experiment import FLAT, FLAT_HMM, Experiment
from speech3.recipe.stages import train_group, training_material
from speech3.sequence.denominator import make_denominator
from speech3.sequence.phone_lm import estimate
from speech3.sequence.transcripts import random_phones, word_labels

_DRAWN = 4  # random pronunciations drawn for each transcript, so that most of its pronunciations are seen


def prepare(e: Experiment) -> None:
    """Make the HMM and its denominator, and pack features and words of train and dev."""
    assert e.recipe.lfmmi is not None
    preset, out = e.feature_preset(FLAT), e.model(FLAT_HMM)
    lexicon, transcripts, feats, features = training_material(e, preset)
    tree = monophone_tree(group_numbers(lexicon), FIRST_AND_LOOP.states)
    hmm = Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5), FIRST_AND_LOOP, SUBSAMPLING)
    spelled = _Spelled(lexicon, transcripts, e.recipe.seed)
    denominator = make_denominator(estimate(spelled, e.recipe.lfmmi.longer_histories), hmm)
    hmm.save(out)
    denominator.save(out)
    say(
        f"  {hmm.num_pdfs} pdfs; phone language model and denominator: {denominator.num_states:,} states,"
        f" {len(denominator.in_src_A):,} arcs"
    )
    _pack(e, "train.frames", e.train, lexicon, transcripts, feats)
    held_out = ArkReader(e.features(preset, "dev") / "feats.scp")
    texts = {key: utterance.text for key, utterance in read_datadir(e.data("dev")).utterances.items()}
    _pack(e, "heldout.frames", "dev", lexicon, usable_transcripts(texts, lexicon, held_out), held_out)
    shutil.copyfile(features, e.frames(FLAT) / "features.yaml")


@dataclass(frozen=True)
class _Spelled(Iterable[list[int]]):
    """Phones of the transcripts, `_DRAWN` times, with pronunciations drawn at random, the same in each iteration."""

    lexicon: Lexicon
    transcripts: Transcripts
    seed: int

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng(self.seed)
        for _ in range(_DRAWN):
            for words in self.transcripts.words.values():
                yield random_phones(self.lexicon, words, generator)


def _pack(
    e: Experiment, name: str, split: str, lexicon: Lexicon, transcripts: Transcripts, feats: ArkReader
) -> None:  # fmt: skip
    config = e.recipe.flat
    longest = config.longest_s * 1000 / e.presets[e.feature_preset(FLAT)].frame_shift
    frames_of: dict[str, int] = {}
    bad, too_long = dict(transcripts.bad), 0
    for utterance, words in transcripts.words.items():
        frames = len(feats[utterance])
        if frames > longest:
            too_long += 1
            continue
        try:
            word_labels(lexicon, words, frames)
            frames_of[utterance] = frames
        except Speech3Error as error:
            bad[utterance] = str(error)
    for utterance, reason in bad.items():
        say(f"  skipped {utterance}: {reason}")
    check_bad(bad, len(feats), str(e.data(split)), "cannot be used for training")
    if too_long:
        say(f"  {too_long} of {len(feats)} utterances of {split} are longer than {config.longest_s:g} s: not used here")
    if not frames_of:
        raise Speech3Error(
            f"{e.data(split)}: every utterance is longer than flat.longest_s={config.longest_s:g}; increase it"
        )
    speeds = list(e.recipe.speed_perturb)
    info: dict[str, Any] = {"corpus": e.name, "alignment": "none", "labels": "words", "speed_perturb": speeds}
    labels = Computed(frames_of, lambda utt: word_labels(lexicon, transcripts.words[utt], frames_of[utt]))
    pack(
        e.frames(FLAT) / name, feats, labels, 2 * len(lexicon.by_word),
        utterances=list(frames_of), dtype=config.training.dtype, info=info,
    )  # fmt: skip


def train_network(e: Experiment) -> None:
    """Train the network that makes the alignment."""
    config = TrainConfig(
        frames=str(e.frames(FLAT)), hmm=str(e.model(FLAT_HMM)), model=e.recipe.flat.model,
        training=e.fitting(e.recipe.flat.training, e.feature_preset(FLAT)), seed=e.recipe.seed,
    )  # fmt: skip
    train_group(config, e.model(FLAT), FLAT)
