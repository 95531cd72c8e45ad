"""Self-training: what LF-MMI recognises in recordings without transcripts trains a second network (`untranscribed`).

Vesely et al. 2013, "Semi-supervised training of deep neural networks": utterances that are recognised with confidence
are added to the transcribed ones. The confidences are calibrated on dev, so their mean over the words of an utterance
is the share of its words that is expected to be right.

OUT/data/untranscribed              utterances: the recordings, cut at pauses
OUT/self/part*.{ctm,ark}            recognised words with confidences, and phone labels of frames; hyp.ctm: all words
OUT/self/chosen.txt                 the utterances that are used: mean confidence, words; the least certain first
OUT/self/labels.ark                 their phone labels
OUT/frames/lfmmi_self               packed frames: of train, and of these utterances
OUT/lfmmi_self                      the model directory; same HMM and graphs as the first network's
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from speech3.config import FeatureConfig, parse, read_yaml
from speech3.corpora import read_untranscribed
from speech3.data import AudioError, Utterance, lengths_s, read_datadir, write_datadir
from speech3.decode import Recognizer, WantedResults, decode_latticed, load_recognizer, parts_at_pauses, times_in
from speech3.features import extract
from speech3.frames import segment_labels
from speech3.hmm import read_ctm, write_ctm
from speech3.io import FEATURES_FILE, ArkReader, ComputedMapping, IntArkReader, write_ark
from speech3.recipe import stages
from speech3.recipe.experiment import LFMMI, SELF, UNTRANSCRIBED, Experiment
from speech3.recipe.stages import More, train_group
from speech3.runtime import progress, say, write_lines, write_text

CHOSEN = "chosen.txt"  # empty if no utterance is certain enough
_PART = 100  # utterances that are recognised before the results are written, so that a killed run loses little
_LONG_S = 20.0  # longer stretches are cut at pauses: an utterance of several sentences is seldom all correct


def make_data(e: Experiment) -> None:
    assert e.recipe.untranscribed is not None
    known = [read_datadir(e.data(split)) for split in ("train", "dev", "test")]
    data = read_untranscribed(Path(e.recipe.untranscribed.recordings), known)
    utterances: dict[str, Utterance] = {}
    for utterance in progress(data.utterances.values(), len(data.utterances), "pauses"):
        assert utterance.end_s is not None
        length_s = utterance.end_s - utterance.start_s
        try:
            parts = [utterance] if length_s <= _LONG_S else parts_at_pauses(data, utterance, length_s)
        except AudioError as error:
            say(f"  left out: {error}")
            continue
        utterances |= {part.id: part for part in parts}
    data = replace(data, utterances=dict(sorted(utterances.items())))
    write_datadir(data, e.data(UNTRANSCRIBED))
    say(f"  {len(utterances):,} stretches without a transcript, {_minutes(lengths_s(data).values()):.1f} minutes")


def extract_features(e: Experiment) -> None:
    """Extract the features of LF-MMI, converting rates and channels as `transcribe` does."""
    preset = e.feature_preset(LFMMI)
    path = e.features(preset, e.train) / FEATURES_FILE
    config = parse(FeatureConfig, read_yaml(path), path).model_copy(update={"resample": True, "mix_channels": True})
    extract(read_datadir(e.data(UNTRANSCRIBED)), e.features(preset, UNTRANSCRIBED), config, e.jobs, relative=True)


def transcribe(e: Experiment) -> None:
    """Recognise the utterances part by part; parts that a killed run has finished are kept."""
    recognizer, out = load_recognizer(e.model(LFMMI)), e.out / "self"
    feats = ArkReader(e.features(e.feature_preset(LFMMI), UNTRANSCRIBED) / "feats.scp")
    keys = list(feats)
    parts = [keys[begin : begin + _PART] for begin in range(0, len(keys), _PART)]
    for number, part in enumerate(parts, 1):
        if not _file(out, number, "ctm").exists():
            say(f"  part {number} of {len(parts)}")
            _transcribe_part(recognizer, ComputedMapping(dict.fromkeys(part), feats.__getitem__), out, number, e.jobs)
    write_lines(out / "hyp.ctm", (path.read_text(encoding="utf-8") for path in sorted(out.glob("part*.ctm"))))


def _transcribe_part(
    recognizer: Recognizer, feats: Mapping[str, np.ndarray], out: Path, number: int, jobs: int
) -> None:
    decoding, _ = decode_latticed(recognizer, feats, out, WantedResults(), jobs)
    texts: dict[str, str | None] = {h.utterance: " ".join(h.units) for h in decoding.hypotheses if h.units}
    said = ComputedMapping(texts, feats.__getitem__)
    alignments, bad = recognizer.align(said, texts, jobs, strict=False) if texts else ({}, {})
    if bad:  # without an alignment there are no labels to train on
        say(f"  {len(bad)} of {len(texts)} utterances could not be aligned and are not used, such as {_first(bad)}")
    every = recognizer.hmm.subsampling
    labels = ((u, segment_labels(a.phones, every * a.starts)) for u, a in alignments.items())
    write_ark(_file(out, number, "ark"), labels)
    write_ctm(_file(out, number, "ctm"), times_in(recognizer, alignments, decoding))  # the last: it marks the end


def found_nothing(e: Experiment) -> bool:
    """Whether `choose` has run and no utterance was certain enough, so that there is nothing to train on."""
    path = e.out / "self" / CHOSEN
    return path.exists() and not path.stat().st_size


def choose(e: Experiment) -> None:
    """Choose the utterances whose words have a high mean confidence, and write their words and labels, if any."""
    assert e.recipe.untranscribed is not None
    out, least, data = e.out / "self", e.recipe.untranscribed.confidence, read_datadir(e.data(UNTRANSCRIBED))
    found, most, certain, words = dict[str, tuple[float, str]](), -1.0, 0.0, 0
    for path in sorted(out.glob("part*.ctm")):  # one part in memory at a time
        for key, said in read_ctm(path).items():
            values = [word.confidence or 0.0 for word in said]
            most = max(most, mean := float(np.mean(values)))
            if mean >= least:
                found[key] = mean, " ".join(word.label for word in said)
                certain, words = certain + sum(values), words + len(said)
    chosen = sorted(found, key=lambda key: (found[key][0], key))
    if not chosen:
        best = f"the best has {most:.2f}" if most >= 0 else "no words were recognised"
        say(
            f"  untranscribed.confidence={least:g}: none of the {len(data.utterances):,} utterances of"
            f" {e.data(UNTRANSCRIBED)} is recognised with this mean confidence ({best}), so there is no {SELF}; set a"
            " lower one, or transcribe more"
        )
        write_text(out / CHOSEN, "")
        write_text(out / "labels.ark", "")
        return
    write_lines(out / CHOSEN, (f"{key} {found[key][0]:.3f} {found[key][1]}\n" for key in chosen))
    parts = map(IntArkReader, sorted(out.glob("part*.ark")))  # utterances are in order, and so are the parts
    write_ark(out / "labels.ark", ((key, labels_T) for part in parts for key, labels_T in part.items() if key in found))
    lengths = lengths_s(data)
    say(
        f"  {len(chosen):,} of {len(data.utterances):,} utterances ({_minutes(lengths[key] for key in chosen):.1f} of"
        f" {_minutes(lengths.values()):.1f} minutes) are recognised with a mean confidence of {least:g} or more"
        " (untranscribed.confidence); of their words"
        f" {certain / words:.0%} are expected to be right"
    )


def pack_frames(e: Experiment) -> None:
    """Pack the frames of train together with those of the chosen utterances; dev is that of the first network."""
    preset, out = e.feature_preset(LFMMI), e.frames(SELF)
    chosen = IntArkReader(e.out / "self" / "labels.ark")
    stages.pack_lfmmi_frames(e, out, More(ArkReader(e.features(preset, UNTRANSCRIBED) / "feats.scp"), chosen))


def train_network(e: Experiment) -> None:
    """Train the second network as the first, but with passes for the transcribed and the chosen speech together."""
    lengths = lengths_s(read_datadir(e.data(UNTRANSCRIBED)))
    more_h = sum(lengths[key] for key in IntArkReader(e.out / "self" / "labels.ark")) / 3600
    train_group(stages.config_of(e, SELF, more_h), e.model(SELF), LFMMI)


def _first(bad: Mapping[str, str]) -> str:
    utterance, reason = next(iter(bad.items()))
    return f"{utterance}: {reason.removeprefix(f'{utterance}: ')}"


def _minutes(seconds: Iterable[float]) -> float:
    return sum(seconds) / 60


def _file(out: Path, number: int, suffix: str) -> Path:
    return out / f"part{number:04d}.{suffix}"
