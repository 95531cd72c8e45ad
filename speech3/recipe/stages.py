"""The stages `data`, `features`, `hmm` and `train`: each step calls its package and stores the results.

OUT/tri/align/{train,dev}/labels.ark        phone labels of frames (`speech3.frames.packed`); in OUT/flat instead, if
                                            hmm.flat_start is lfmmi
OUT/lfmmi_hmm                               LF-MMI: left biphones, denominator.safetensors, decoding graphs
OUT/frames/lfmmi/{train,heldout}.frames     packed frames, labelled with phones
OUT/lfmmi                                   the model directory
OUT/flat_hmm                                flat start: two pdfs for each group of phones, denominator.safetensors
OUT/frames/flat/{train,heldout}.frames      packed frames, labelled with words
OUT/flat                                    the model directory; align/{train,dev}, as for the triphones
OUT/bmmi                                    boosted MMI: the triphones' HMM and graphs, and their GMMs trained further

The flat start without GMMs (hmm.flat_start=lfmmi) is that of Hadian et al. 2018, "End-to-end speech recognition using
lattice-free MMI": a small network with two outputs for each group of phones, independent of context, is trained with
LF-MMI on whole utterances, and then makes the alignment in place of the triphones.
"""

import inspect
import json
import re
import shutil
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from speech3.config import (
    FeatureConfig,
    HmmConfig,
    PretrainConfig,
    TrainConfig,
    TrainingConfig,
    load_config,
    parse,
    read_yaml,
    shipped,
)
from speech3.corpora import HELD_OUT_LEXICON, read_untranscribed
from speech3.data import add_background, augment_data, copy_prefix, has_no_background, perturb_speed, read_datadir
from speech3.decode import Recognizer, TrainedModel, load_recognizer
from speech3.errors import MOST_UNALIGNED, DataError, SettingError, Speech3Error, check_bad
from speech3.features import extract
from speech3.frames import segment_labels, segment_numbers, segment_starts, write_frames
from speech3.hmm import (
    FIRST_AND_LOOP,
    NO_WORD,
    SUBSAMPLING,
    Alignment,
    DataWaves,
    GmmSystem,
    Hmm,
    Refinement,
    Transcripts,
    Workers,
    along_boundaries,
    biphone_leaves,
    frame_clock,
    group_numbers,
    has_phones,
    lfmmi_passes,
    load_gmm,
    load_hmm,
    monophone_tree,
    phone_groups,
    read_phone_sets,
    realign,
    to_first_and_loop,
    train_monophone,
    train_tree,
    train_triphone,
    usable_transcripts,
    with_new_words,
    with_sizes,
    write_alignments,
)
from speech3.io import (
    FEATURES_FILE,
    METRICS_FILE,
    MODEL_FILE,
    RUN_FILE,
    ArkReader,
    ComputedMapping,
    IntArkReader,
    write_ark,
)
from speech3.language import Lexicon, mark_positions, read_lexicon, with_garbage
from speech3.recipe.experiment import (
    BMMI,
    CORPORA,
    FLAT,
    FLAT_HMM,
    LFMMI,
    LFMMI_HMM,
    LFMMI_MEAN,
    LFMMI_TAUGHT,
    Experiment,
)
from speech3.recipe.language import check_given
from speech3.runtime import Metrics, progress, read_json, say, write_json
from speech3.sequence import (
    bmmi,
    estimate_phone_lm,
    make_denominator,
    random_phones,
    silence_senones,
    word_labels,
)
from speech3.train import copy_model_files

_KEYS = re.compile(r"(?<![\w./-])(?:training|model)(?==|\.(?!safetensors)[a-z])")  # in messages, not in paths
_MIN_LEAF_OUTPUTS = 30  # minimum number of training outputs (one per three frames) in a leaf of the tree
TOO_SHORT = "too_short.json"
_DRAWN = 4  # random pronunciations drawn for each transcript, so that most of its pronunciations are seen


def say_each(what: str, reasons: Mapping[str, str]) -> None:
    """What became of some utterances, and why."""
    for utterance, reason in reasons.items():
        say(f"  {what} {utterance}: {reason}")


def make_data(e: Experiment) -> None:
    prepare, lm = CORPORA[e.recipe.corpus], e.recipe.lm
    if e.recipe.units == "sentencepiece" and (lm.arpa or lm.text or lm.grammar):
        raise SettingError(
            "units=sentencepiece estimates its language model on pieces: set lm.order instead, and text in"
            " lang/text of the source"
        )
    known = {p.name: p.annotation for p in inspect.signature(prepare).parameters.values() if p.kind is p.KEYWORD_ONLY}
    of_corpus = ("lang", "lexicon", "units", "pieces", "tier", "graphemes")  # keys that most corpora do not use
    of_recipe = {"jobs": e.jobs, **{key: getattr(e.recipe, key) for key in (*of_corpus, "sample_rate")}}
    passed: dict[str, Any] = {key: value for key, value in of_recipe.items() if known.pop(key, None)}
    default = type(e.recipe).model_fields
    for key in set(of_corpus) - set(passed):
        if of_recipe[key] != default[key].default:
            raise SettingError(f"{key}={of_recipe[key]}: the corpus {e.recipe.corpus} does not use it; remove it")
    for key, value in e.recipe.corpus_options.items():
        if key not in known:
            raise SettingError(
                f"corpus_options: unknown key {key!r}; the corpus {e.recipe.corpus} has {', '.join(known) or 'none'}"
            )
        try:
            TypeAdapter(known[key]).validate_python(value, strict=True)
        except ValidationError as error:
            raise SettingError(f"corpus_options.{key}: {error.errors()[0]['msg']} (got {value!r})") from error
    prepare(e.source, e.out / "data", e.recipe.seed, **passed, **e.recipe.corpus_options)
    check_given(e)
    _add_background(e)


def _add_background(e: Experiment) -> None:
    """Add copies with background to training data where they are asked for, or recordings have none."""
    wanted, train = e.recipe.background, read_datadir(e.data("train"))
    if wanted is None:
        from_audio = all(config.kind != "given" for config in e.presets.values())
        wanted = from_audio and has_no_background(train)
        if wanted:
            say("  recordings begin and end with speech; a copy of each gets background noise (background=false: none)")
    if wanted:
        add_background(train, jobs=e.jobs)


def perturb_train(e: Experiment) -> None:
    perturb_speed(read_datadir(e.data("train")), e.data(e.speech), e.recipe.speed_perturb, jobs=e.jobs)


def augment_train(e: Experiment) -> None:
    """Make copies of the training data with noise, reverberation and so on; they keep the originals' alignment."""
    assert e.recipe.augment is not None
    data, out = read_datadir(e.data(e.train)), e.data(e.augmented)
    report = augment_data(data, out, e.recipe.augment, seed=e.recipe.seed, jobs=e.jobs)
    say_each("skipped", report.skipped)


def extract_features(e: Experiment, preset: str) -> None:
    """Extract the features of all splits, training first: its global CMVN statistics are used for the others."""
    config = e.presets[preset].for_training
    for split in e.extracted:
        report = extract(read_datadir(e.data(split)), e.features(preset, split), config, e.jobs, relative=True)
        config = config.model_copy(update={"global_stats": report.config.global_stats})
        say_each("skipped", report.skipped)


def extract_augmented(e: Experiment) -> None:
    """Extract the networks' features of the augmented copies, with the same configs as those of the training data."""
    for preset in e.network_features:
        path = e.features(preset, e.train) / FEATURES_FILE
        config = parse(FeatureConfig, read_yaml(path), path).for_training
        data, out = read_datadir(e.data(e.augmented)), e.features(preset, e.augmented)
        report = extract(data, out, config, e.jobs, relative=True)
        say_each("skipped", report.skipped)


def training_material(e: Experiment, preset: str) -> tuple[Lexicon, Transcripts, ArkReader, Path]:
    """The lexicon, the transcripts and features of the training split, and the path of the features' config."""
    directory = e.features(preset, e.train)
    feats = ArkReader(directory / "feats.scp")
    lexicon = replace(read_lexicon(e.lexicon, e.recipe.hmm.silence_prob), language=e.recipe.lang or "")
    if e.recipe.negatives:
        lexicon = with_garbage(lexicon)
    if e.recipe.hmm.position_dependent and e.recipe.units == "words":  # the position of a piece in a word is unknown
        lexicon = mark_positions(lexicon)
    texts = {key: utterance.text for key, utterance in read_datadir(e.data(e.train)).utterances.items()}
    transcripts = usable_transcripts(texts, lexicon, feats)
    check_bad(transcripts.bad, len(feats), str(e.data(e.train)))
    return lexicon, transcripts, feats, directory / FEATURES_FILE


def sized_config(e: Experiment, lexicon: Lexicon) -> HmmConfig:
    """The config of the GMMs; sizes of 0 are replaced by sizes that depend on the amount of speech.

    Those of GMMs on transformed features: `speech3.hmm.train.sized_transformed`.
    """
    hmm = e.recipe.hmm
    if all((hmm.mono.gaussians, hmm.aligner.gaussians, hmm.tri.leaves, hmm.tri.gaussians)):
        return hmm
    return with_sizes(hmm, e.hours, len(phone_groups(lexicon)))


def save_gmms(e: Experiment, name: str, system: GmmSystem, features: Path, preset: str) -> None:
    """Write a model directory of GMMs; `features` is the features.yaml of their training data."""
    out = e.model(name)
    say_each("not aligned:", system.failed)
    system.hmm.save(out)
    shutil.copyfile(features, out / FEATURES_FILE)
    system.gmm.save(out / MODEL_FILE, {"features": preset})


def _check_aligned(bad: Mapping[str, str], total: int, what: str) -> None:
    """Refuse a system whose training left out a quarter of the utterances; up to that, the others are what counts."""
    check_bad(bad, total, what, "could not be aligned", most=MOST_UNALIGNED)
    if bad:
        say(f"  {len(bad):,} of {total:,} utterances are left out of training, since they could not be aligned")


def train_mono(e: Experiment, name: str) -> None:
    """Train monophone GMMs: the system `mono`, or the smaller `aligner` with its own features.

    Deltas and their deltas depend on four frames to either side. On synthesised speech this blurs the boundaries of
    phones; but on real speech, where phones change gradually, boundary errors are a third larger without deltas
    (tests/recipe/test_aligner.py).
    """
    preset = e.recipe.hmm.aligner_features if name == "aligner" else e.recipe.hmm.features
    lexicon, transcripts, feats, features = training_material(e, preset)
    hmm = sized_config(e, lexicon)
    stage = hmm.aligner if name == "aligner" else hmm.mono
    generator, metrics = np.random.default_rng(e.recipe.seed), Metrics(e.model(name) / METRICS_FILE)
    with Workers(transcripts.words, feats, e.jobs) as workers:
        system = train_monophone(workers, lexicon, hmm.model_copy(update={"mono": stage}), generator, metrics)
        if name == "aligner":
            config = parse(FeatureConfig, read_yaml(features), features)
            waves = DataWaves(read_datadir(e.data(e.train)), config.sample_frequency)
            system = along_boundaries(workers, system, hmm, Refinement(frame_clock(config), waves))
    _check_aligned({**transcripts.bad, **system.failed}, len(feats), "monophone training")
    save_gmms(e, name, system, features, preset)


def train_tri(e: Experiment) -> None:
    preset = e.recipe.hmm.features
    lexicon, transcripts, feats, features = training_material(e, preset)
    hmm = sized_config(e, lexicon)
    mono = GmmSystem(load_hmm(e.model("mono")), load_gmm(e.model("mono") / MODEL_FILE), {})
    generator, metrics = np.random.default_rng(e.recipe.seed), Metrics(e.model("tri") / METRICS_FILE)
    with Workers(transcripts.words, feats, e.jobs) as workers:
        by_monophones = partial(realign, label="alignment by monophones")
        workers.run(by_monophones, mono.hmm, mono.gmm, e.recipe.hmm.beam, e.recipe.hmm.retry_beam)
        system = train_triphone(workers, mono, hmm, generator, metrics)
    _check_aligned({**transcripts.bad, **system.failed}, len(feats), "triphone training")
    save_gmms(e, "tri", system, features, preset)


def aligning_recognizer(e: Experiment, name: str) -> Recognizer:
    """A system for aligning all splits: if letters are the phones, words that only dev and test have are spelled."""
    recognizer = load_recognizer(e.model(name))
    if not (spellings := e.out / "data" / HELD_OUT_LEXICON).exists():
        return recognizer
    found = read_lexicon(spellings).pronunciations
    usable = [pron for pron in found if has_phones(pron, recognizer.hmm.lexicon)]
    return replace(recognizer, outputs=with_new_words(recognizer.hmm, usable, str(spellings)))


def align_data(e: Experiment, name: str, preset: str, splits: Sequence[str]) -> None:
    recognizer = aligning_recognizer(e, name)
    for split in splits:  # the alignment of test is for inspection only: its words may all be new
        feats, out = ArkReader(e.features(preset, split) / "feats.scp"), e.alignment(name, split)
        align_split(recognizer, feats, e.data(split), out, e.jobs, strict=split != "test")


def align_split(
    recognizer: TrainedModel, feats: Mapping[str, np.ndarray], data: Path, out: Path, jobs: int, *, strict: bool = True
) -> None:
    """Align a data directory and write the result, without TextGrids; `strict` as for `Recognizer.align`."""
    said = read_datadir(data)
    texts = {key: utterance.text for key, utterance in said.utterances.items()}
    waves = DataWaves(said, recognizer.features.sample_frequency)
    alignments, bad = recognizer.align(feats, texts, jobs, strict=strict, waves=waves)
    write_alignments(out, recognizer.hmm, alignments, texts, recognizer.clock, bad=bad, textgrids=False)
    # There is a label for each frame; a model with subsampling may have too many at the end, which `pack` cuts off.
    every = recognizer.hmm.subsampling
    write_ark(out / "labels.ark", ((u, segment_labels(a.phones, every * a.starts)) for u, a in alignments.items()))
    say_each("not aligned:", bad)


def pack_frames(e: Experiment, network: str) -> None:
    hmm, source = load_hmm(e.model("tri")), e.label_source(network)
    for split, name in ((e.train, "train.frames"), ("dev", "heldout.frames")):
        senones = IntArkReader(e.alignment(source, split) / "ali.ark")
        info = {"alignment": source}
        pack_split(e, split, e.recipe.features, senones, hmm.num_pdfs, e.frames(network) / name, e.training.dtype, info)
    shutil.copyfile(e.features(e.recipe.features, e.train) / FEATURES_FILE, e.frames(network) / FEATURES_FILE)


@dataclass(frozen=True, eq=False)
class More:
    """Utterances to be packed in addition to the training split: their labels, and features of these and others."""

    feats: Mapping[str, np.ndarray]
    labels: Mapping[str, np.ndarray]


def pack_split(
    e: Experiment,
    split: str,
    preset: str,
    labels: Mapping[str, np.ndarray],
    num_labels: int,
    out: Path,
    dtype: Literal["float16", "float32"],
    info: dict[str, Any],
    left_out: Collection[str] = (),
    more: More | None = None,
) -> None:
    """Pack features and labels of a split; for training, also of its augmented copies, with the originals' labels.

    `left_out`: utterances that are not packed; nor are their copies. `more`: further utterances for training.
    """
    feats: Mapping[str, np.ndarray] = ArkReader(e.features(preset, split) / "feats.scp")
    used = [utterance for utterance in feats if utterance not in left_out]
    info = {**e.about_data, **info}
    if e.recipe.augment and split == e.train:
        info["augment"] = e.recipe.augment.model_dump()
        copies, prefix = ArkReader(e.features(preset, e.augmented) / "feats.scp"), copy_prefix(1)
        used += [copy for copy in copies if copy.removeprefix(prefix) not in left_out]
        originals = {key: key for key in labels} | {prefix + key: key for key in labels}
        labels = ComputedMapping(originals, partial(_labels_of, labels, originals))
        feats = ChainMap({}, feats, copies)  # type: ignore[arg-type]  # the readers are not written to
    if more and split == e.train:
        used += list(more.labels)
        labels = ChainMap({}, labels, more.labels)  # type: ignore[arg-type]  # as above
        feats = ChainMap({}, feats, more.feats)  # type: ignore[arg-type]
    report = write_frames(out, feats, labels, num_labels, utterances=used, dtype=dtype, info=info)
    say_each("left out", report.skipped)


def _labels_of(labels: Mapping[str, np.ndarray], originals: Mapping[str, str], utterance: str) -> np.ndarray:
    return labels[originals[utterance]]


def train_network(e: Experiment, network: str) -> None:
    """Train a neural network; the triphones' HMM and graphs are copied into its model directory."""
    from speech3.train import train

    recipe = e.recipe
    if e.training != recipe.training:
        say(f"  {recipe.features} has no mel bins: training without frequency warps, masks and speeds")
    config = TrainConfig(
        frames=str(e.frames(network)),
        hmm=str(e.model("tri")),
        model=recipe.model,
        training=as_begun(e, e.training, "", e.model(network)),
        init=e.init(network),
        seed=recipe.seed,
    )
    train(config, e.model(network))


def pretrain_network(e: Experiment, system: str) -> None:
    """Pretrain the network of a system; what `pretrain` shares with dev and test is left out.

    It has an output for every frame, also where LF-MMI will have one for every third: no parameter depends on that.
    """
    from speech3.train import pretrain

    given, out, lfmmi = e.recipe.pretrain, e.pretrained(system), e.recipe.lfmmi
    assert given is not None and out is not None
    model = lfmmi.model if lfmmi and system == LFMMI else e.recipe.model
    training = lfmmi.training if lfmmi and system == LFMMI else e.training
    values = {
        "model": {**model.model_dump(mode="json"), "subsampling": None, "two_outputs": None},
        "features": str(e.features(e.feature_preset(system), e.train) / FEATURES_FILE),
        "pretraining": given.pretraining.model_dump(),
        "training.max_epochs": given.max_epochs,
        "training.device": training.device,
        "seed": e.recipe.seed,
        "jobs": e.jobs,
    }
    config = load_config(
        PretrainConfig, shipped("conf") / "pretrain.yaml", [f"{key}={json.dumps(each)}" for key, each in values.items()]
    )
    known = [read_datadir(e.data(split)) for split in ("dev", "test")]
    pretrain(read_untranscribed(Path(given.recordings), known, "pretrain=DIR"), out, config)


def as_begun(e: Experiment, training: TrainingConfig, group: str, out: Path) -> TrainingConfig:
    """The training with which a killed run in `out` can be resumed if it began with another number of workers.

    One worker, who would train in world sgd, continues what several began in shared memory, and the other way round.
    """
    run, chosen = out / RUN_FILE, f"{group}training.world" in e.workers_chosen
    if not chosen or not run.exists() or (out / MODEL_FILE).exists():
        return training
    world = read_json(run)["training"]["world"]
    other = {world, training.world} == {"sgd", "shared"}
    return training.model_copy(update={"world": world, "workers": 1}) if other else training


def train_group(config: TrainConfig, out: Path, group: str) -> None:
    """Train a network whose keys are in a group of the recipe, `lfmmi` or `flat`; errors name them with the group."""
    from speech3.train import train

    try:
        train(config, out)
    except Speech3Error as error:
        raise error.restated(_KEYS.sub(rf"{group}.\g<0>", str(error))) from error


def train_bmmi(e: Experiment) -> None:
    """Train the triphones' GMMs further on their alignment; the HMM and its graphs are copied into the directory."""
    tri, out, preset = e.model("tri"), e.model(BMMI), e.recipe.hmm.features
    feats = ArkReader(e.features(preset, e.train) / "feats.scp")
    alignment = e.alignment("tri", e.train) / "ali.ark"
    aligned = IntArkReader(alignment)
    gmm, metrics = load_gmm(tri / MODEL_FILE), Metrics(out / METRICS_FILE)
    hmm = load_hmm(tri)
    left_out_S, silence_S = bmmi.unknown_senones(hmm), silence_senones(hmm)
    # Transcripts are not needed any more.
    with Workers({utterance: [] for utterance in feats if utterance in aligned}, feats, e.jobs) as workers:
        gmm = bmmi.train(workers, gmm, e.recipe.hmm.bmmi, alignment, left_out_S, metrics, silence_S)
    copy_model_files(out, hmm=tri, data=tri)
    gmm.save(out / MODEL_FILE, {"features": preset})


def train_lfmmi_hmm(e: Experiment) -> None:
    """Build the left-biphone tree on the alignment of the bootstrap, and estimate the phone language model."""
    assert e.recipe.lfmmi is not None
    out, lexicon = e.model(LFMMI_HMM), load_hmm(e.model(e.bootstrap)).lexicon
    feats = ArkReader(e.features(e.recipe.hmm.features, e.train) / "feats.scp")
    labels, too_short = IntArkReader(e.alignment(e.bootstrap, e.train) / "labels.ark"), {}
    for utterance, labels_T in progress(labels.items(), len(labels), "alignment for LF-MMI"):
        try:
            to_first_and_loop(_alignment(labels_T))
        except Speech3Error as error:
            too_short[utterance] = str(error)
            say(f"  skipped {utterance}: {error}")
    check_bad(too_short, len(labels), str(e.data(e.train)), "are too short for LF-MMI")
    used = dict.fromkeys(utterance for utterance in labels if utterance not in too_short)
    alignments = ComputedMapping(used, lambda utterance: to_first_and_loop(_alignment(labels[utterance])))
    leaves = e.recipe.lfmmi.leaves or biphone_leaves(e.hours, len(phone_groups(lexicon)))
    questions = e.recipe.hmm.extra_questions
    extra = read_phone_sets(questions, lexicon) if questions else []
    hmm = train_tree(alignments, feats, lexicon, leaves, _MIN_LEAF_OUTPUTS, extra, key="lfmmi.leaves")
    phones = ComputedMapping(used, lambda utterance: _alignment(labels[utterance]).phones.tolist())
    denominator = make_denominator(estimate_phone_lm(phones.values(), e.recipe.lfmmi.extra_lm_states), hmm)
    denominator.save(out)
    write_json(out / TOO_SHORT, too_short)
    hmm.save(out)
    _say_sizes(hmm, denominator)


def _say_sizes(hmm: Hmm, denominator: Any) -> None:
    say(
        f"  {hmm.num_pdfs} pdfs; phone language model and denominator: {denominator.num_states:,} states,"
        f" {len(denominator.in_src_A):,} arcs"
    )


def _alignment(labels_T: np.ndarray) -> Alignment:
    phones = segment_numbers(labels_T).astype(np.int32)
    starts = np.append(segment_starts(labels_T), len(labels_T)).astype(np.int32)
    return Alignment(phones, np.full(len(phones), NO_WORD), starts, np.zeros(len(labels_T), np.int8), 0.0)


def pack_lfmmi_frames(e: Experiment, out: Path, more: More | None = None) -> None:
    """Pack features and phones of train (with `more` utterances) and dev into the directory `out`."""
    assert e.recipe.lfmmi is not None
    preset, dtype = e.feature_preset(LFMMI), e.recipe.lfmmi.training.dtype
    too_short = read_json(e.model(LFMMI_HMM) / TOO_SHORT)
    for split, name in ((e.train, "train.frames"), ("dev", "heldout.frames")):
        labels = IntArkReader(e.alignment(e.bootstrap, split) / "labels.ark")
        info = {"alignment": e.bootstrap, "labels": "phones"}
        pack_split(e, split, preset, labels, num_phone_labels(e), out / name, dtype, info, too_short, more)
    shutil.copyfile(e.features(preset, e.train) / FEATURES_FILE, out / FEATURES_FILE)


def num_phone_labels(e: Experiment) -> int:
    """How many labels `segment_labels` can give to a frame."""
    return 2 * len(load_hmm(e.model(LFMMI_HMM)).lexicon.phones) + 2


def train_lfmmi(e: Experiment) -> None:
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
    taught = {"teacher": str(e.model(LFMMI_MEAN))} if name == LFMMI_TAUGHT else {"teaching": None}
    training = training.model_copy(update={"lfmmi": training.lfmmi.model_copy(update=taught)})
    return TrainConfig(
        frames=str(e.frames(name)),
        hmm=str(e.model(LFMMI_HMM)),
        model=system.model,
        training=as_begun(e, training, "lfmmi.", e.model(name)),
        init=e.init(name),
        seed=e.recipe.seed,
    )


def prepare_flat(e: Experiment) -> None:
    """Make the HMM and its denominator, and pack features and words of train and dev."""
    assert e.recipe.lfmmi is not None
    preset, out = e.feature_preset(FLAT), e.model(FLAT_HMM)
    lexicon, transcripts, feats, features = training_material(e, preset)
    tree = monophone_tree(group_numbers(lexicon), FIRST_AND_LOOP.states)
    hmm = Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5), FIRST_AND_LOOP, SUBSAMPLING)
    spelled = _Spelled(lexicon, transcripts, e.recipe.seed)
    denominator = make_denominator(estimate_phone_lm(spelled, e.recipe.lfmmi.extra_lm_states), hmm)
    hmm.save(out)
    denominator.save(out)
    _say_sizes(hmm, denominator)
    _pack(e, "train.frames", e.train, lexicon, transcripts, feats)
    held_out = ArkReader(e.features(preset, "dev") / "feats.scp")
    texts = {key: utterance.text for key, utterance in read_datadir(e.data("dev")).utterances.items()}
    _pack(e, "heldout.frames", "dev", lexicon, usable_transcripts(texts, lexicon, held_out), held_out)
    shutil.copyfile(features, e.frames(FLAT) / FEATURES_FILE)


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


def _pack(e: Experiment, name: str, split: str, lexicon: Lexicon, transcripts: Transcripts, feats: ArkReader) -> None:
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
    say_each("skipped", bad)
    check_bad(bad, len(feats), str(e.data(split)), "cannot be used for training")
    if too_long:
        say(f"  {too_long} of {len(feats)} utterances of {split} are longer than {config.longest_s:g} s: not used here")
    if not frames_of:
        raise DataError(
            f"{e.data(split)}: every utterance is longer than flat.longest_s={config.longest_s:g}; increase it"
        )
    info: dict[str, Any] = {**e.about_data, "alignment": "none", "labels": "words"}
    labels = ComputedMapping(frames_of, lambda utt: word_labels(lexicon, transcripts.words[utt], frames_of[utt]))
    out, dtype = e.frames(FLAT) / name, config.training.dtype
    write_frames(out, feats, labels, 2 * len(lexicon.by_word), utterances=list(frames_of), dtype=dtype, info=info)


def train_flat(e: Experiment) -> None:
    config = TrainConfig(
        frames=str(e.frames(FLAT)),
        hmm=str(e.model(FLAT_HMM)),
        model=e.recipe.flat.model,
        training=e.fitting(e.recipe.flat.training, e.feature_preset(FLAT)),
        seed=e.recipe.seed,
    )
    train_group(config, e.model(FLAT), FLAT)
