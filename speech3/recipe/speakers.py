"""The steps of the systems `lda` and `sat`: GMMs on transformed features, and decoding with adaptation to speakers.

OUT/lda, OUT/sat                    model directories (`speech3.hmm.sat`)
OUT/sat/{trans.ark,trans.scp,spk2utt}   transforms of the speakers of training
OUT/decode/sat/test_passN           the words of each pass before the last: hyp.txt; the transforms from them: trans.*
OUT/features/sat/{train,dev,test}   features after LDA, MLLT and the speakers' transforms, for networks; those of dev
                                    and test are adapted to the words of the last pass but one
OUT/features/sat_words/{dev,test}   with an LF-MMI system: adapted to its words, for decoding; and trans.*
OUT/sat/align/{train,dev}           alignments of these features by SAT's adapted GMMs
OUT/frames/sat                      packed: the utterances of training with and without their speaker's transform
OUT/frames/sat_PRESET               the same for networks with convolutions: mel bins, and then the adapted features
OUT/sat_dnn, OUT/sat_cnn, ...       networks of the recipe's families on these features, with SAT's senones and graph
OUT/frames/sat_lfmmi, OUT/sat_lfmmi  for LF-MMI: mel bins, and beside the convolutions the adapted features
OUT/lfmmi_mean                      the networks of lfmmi and sat_lfmmi, which score together
OUT/lfmmi_taught                    a network like sat_lfmmi that also learns from lfmmi_mean
"""

import shutil
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from speech3.config import FeatureConfig, TrainConfig, parse, read_yaml
from speech3.data import read_datadir
from speech3.decode import (
    Marked,
    SideBySide,
    TrainedModel,
    TunedPasses,
    before_last_pass,
    load_recognizer,
    read_speakers,
    say_speakers,
    speaker_model,
    transforms_along,
    tune_passes,
    write_speakers,
)
from speech3.errors import DataError, MissingError, check_bad
from speech3.evaluate import read_text
from speech3.features import silent_in
from speech3.frames import write_frames
from speech3.hmm import (
    GmmSystem,
    Projected,
    Projection,
    Workers,
    load_gmm,
    load_hmm,
    load_projection,
    save_adapted,
    save_projection,
    sized_transformed,
    train,
    train_lda,
    train_sat,
    use_projection,
)
from speech3.io import FEATURES_FILE, METRICS_FILE, MODEL_FILE, ArkReader, ComputedMapping, IntArkReader, write_ark
from speech3.models import save_mean
from speech3.recipe.experiment import (
    LDA,
    LFMMI,
    LFMMI_HMM,
    LFMMI_MEAN,
    SAT,
    SAT_LFMMI,
    SAT_WORDS,
    Experiment,
)
from speech3.recipe.language import error_rate
from speech3.recipe.stages import (
    TOO_SHORT,
    align_split,
    as_begun,
    config_of,
    num_phone_labels,
    save_gmms,
    sized_config,
    train_group,
    training_material,
)
from speech3.runtime import Metrics, read_json, say, write_json, write_text
from speech3.train import copy_model_files

UNADAPTED = "+unadapted"  # after the names of utterances that are packed without a transform
PASS = "test_pass{}"  # in decode/sat: the words of a pass before the last


def speakers_of(data: Path) -> dict[str, str]:
    return {key: utterance.speaker for key, utterance in read_datadir(data).utterances.items()}


def spliced_values(features: Path) -> tuple[int, int]:
    """How many values of a frame are static, which LDA splices, and how many there are; from a features.yaml."""
    config = parse(FeatureConfig, read_yaml(features), features)
    if config.left_context or config.right_context:
        raise DataError(f"{features}: LDA splices frames itself; set left_context and right_context to 0")
    first = next(iter(ArkReader(features.parent / "feats.scp").values()))
    return first.shape[1] // (config.deltas + 1), first.shape[1]


def train_lda_system(e: Experiment) -> None:
    """Train GMMs on features after LDA and MLLT, from the alignments of the triphones."""
    _, transcripts, feats, features = training_material(e, e.recipe.hmm.features)
    speaker_of = speakers_of(e.data(e.train))
    tri = GmmSystem(load_hmm(e.model("tri")), load_gmm(e.model("tri") / MODEL_FILE), {})
    config = sized_transformed(sized_config(e, tri.hmm.lexicon), e.hours)
    generator, metrics = np.random.default_rng(e.recipe.seed), Metrics(e.model(LDA) / METRICS_FILE)
    with Workers(transcripts.words, Projected(feats, speaker_of), e.jobs, speaker_of) as workers:
        realign = partial(train.realign, label="alignment by triphones")
        workers.run(realign, tri.hmm, tri.gmm, e.recipe.hmm.beam, e.recipe.hmm.retry_beam)
        found, projection = train_lda(workers, tri, config, spliced_values(features), generator, metrics)
    check_bad({**transcripts.bad, **found.failed}, len(feats), "training of lda")
    save_gmms(e, LDA, found, features, e.recipe.hmm.features)
    save_projection(e.model(LDA), projection)


def train_sat_system(e: Experiment) -> None:
    """Speaker-adaptive training from the system `lda`; the twin for unadapted features is the model's own GMMs."""
    _, transcripts, feats, features = training_material(e, e.recipe.hmm.features)
    speaker_of, lda = speakers_of(e.data(e.train)), e.model(LDA)
    first = GmmSystem(load_hmm(lda), load_gmm(lda / MODEL_FILE), {})
    projection = _projection(lda)
    config = sized_transformed(sized_config(e, first.hmm.lexicon), e.hours)
    assert config.sat is not None
    generator, metrics = np.random.default_rng(e.recipe.seed), Metrics(e.model(SAT) / METRICS_FILE)
    with Workers(transcripts.words, Projected(feats, speaker_of), e.jobs, speaker_of) as workers:
        workers.run(use_projection, projection, {})
        realign = partial(train.realign, label="alignment by lda")
        workers.run(realign, first.hmm, first.gmm, e.recipe.hmm.beam, e.recipe.hmm.retry_beam)
        found = train_sat(workers, first, config, generator, metrics)
    check_bad({**transcripts.bad, **found.system.failed}, len(feats), "training of sat")
    save_gmms(e, SAT, found.system, features, e.recipe.hmm.features)
    save_projection(e.model(SAT), projection)
    save_adapted(e.model(SAT), found, config.sat, {"features": e.recipe.hmm.features})
    write_speakers(e.model(SAT), found.estimated.transforms, speaker_of)
    say_speakers(speaker_of, found.estimated)


def _projection(model: Path) -> Projection:
    found = load_projection(model)
    if found is None:
        raise MissingError(f"{model}: has no projection (lda.safetensors); run the recipe again --from hmm")
    return found


def passes_on_dev(e: Experiment, dev: Mapping[str, np.ndarray]) -> TunedPasses:
    """Tune all passes of `sat` on dev, and keep the transforms of the last one."""
    references = {key: (u.text or "").split() for key, u in read_datadir(e.data("dev")).utterances.items()}
    config, speaker_of = e.recipe.decode.model_copy(update={"metric": e.recipe.metric}), speakers_of(e.data("dev"))
    recognizer = load_recognizer(e.model(SAT))
    found = tune_passes(recognizer, dev, speaker_of, references, config, e.jobs, error_rate(e.recipe.metric))
    write_speakers(e.out / "decode" / SAT / "dev_transforms", found.transforms, speaker_of)
    return found


def passes_on_test(
    e: Experiment, test: Mapping[str, np.ndarray]
) -> tuple[TrainedModel, Mapping[str, np.ndarray], float]:
    """Run all passes but the last over test; their words and the transforms from these are written to ``test_passN``.

    Returns
    -------
    The recogniser of the last pass, the features for it, and the seconds that the earlier passes took.
    """
    out = e.out / "decode" / SAT
    for left in out.glob(PASS.format("*")):
        shutil.rmtree(left)
    model = speaker_model(load_recognizer(e.model(SAT)))
    assert model is not None
    start = time.monotonic()
    silent = silent_in(e.features(e.feature_preset(SAT), "test"))
    recognizer, feats = before_last_pass(
        model, test, speakers_of(e.data("test")), lambda number: out / PASS.format(number), e.jobs, silent
    )
    return recognizer, feats, time.monotonic() - start


def adapted_features(e: Experiment) -> dict[str, tuple[Projected, Path | None]]:
    """For each split: the features after the projection and the speakers' transforms, and where these are from.

    Those of training have the transforms estimated along the transcripts; those of dev and test have those with which
    the last pass was decoded. Speakers without a transform have only the projection.
    """
    projection, preset = _projection(e.model(SAT)), e.recipe.hmm.features
    decoded = e.out / "decode" / SAT
    last = max(decoded.glob(PASS.format("*")), default=None, key=lambda path: int(path.name.removeprefix("test_pass")))
    made = {e.train: e.model(SAT), "dev": last and decoded / "dev_transforms", "test": last}
    found = {}
    for split, transforms in made.items():
        feats = ArkReader(e.features(preset, split) / "feats.scp")
        known = read_speakers(transforms, projection.dim) if transforms else {}
        found[split] = Projected(feats, speakers_of(e.data(split)), projection, known), transforms
    return found


def last_pass(e: Experiment, split: str) -> tuple[TrainedModel, Mapping[str, np.ndarray]]:
    """The recogniser of the last pass of `sat`, and the features of a decoded split with the transforms it had."""
    model, feats = speaker_model(load_recognizer(e.model(SAT))), e.feats(SAT, split)
    assert model is not None
    _, transforms = adapted_features(e)[split]
    if transforms is None:
        return model.recognizer, feats
    known = read_speakers(transforms, model.projection.dim)
    if not known and split == "test":  # as `before_last_pass` has it
        return model.recognizer, feats
    return model.adapted_to(feats, speakers_of(e.data(split)), known, model.recognizer.graph)


def write_adapted_features(e: Experiment) -> None:
    """Write `adapted_features` as feature directories; ``adapted.json`` says how they were made."""
    for split, (projected, transforms) in adapted_features(e).items():
        along = "transcripts" if split == e.train else "recognised words"
        _write_adapted(e, e.features(SAT, split), projected, transforms, along)


def write_features_of_words(e: Experiment) -> None:
    """Write features of dev and test that are adapted to what the system `LFMMI` recognised."""
    model = speaker_model(load_recognizer(e.model(SAT)))
    assert model is not None
    for split in ("dev", "test"):
        feats, out = ArkReader(e.features(e.recipe.hmm.features, split) / "feats.scp"), e.features(SAT_WORDS, split)
        words, speaker_of = read_text(e.out / "decode" / LFMMI / split / "hyp.txt"), speakers_of(e.data(split))
        transforms = transforms_along(model, feats, speaker_of, words, e.jobs)
        write_speakers(out, transforms, speaker_of)
        projected = Projected(feats, speaker_of, model.projection, transforms)
        _write_adapted(e, out, projected, out, f"words recognised by {LFMMI}")


def _write_adapted(e: Experiment, out: Path, projected: Projected, transforms: Path | None, along: str) -> None:
    preset, split = e.recipe.hmm.features, out.name
    base = parse(FeatureConfig, read_yaml(e.features(preset, e.train) / FEATURES_FILE), preset)
    write_ark(out / "feats.ark", projected.items(), out / "feats.scp")
    write_text(out / FEATURES_FILE, yaml.safe_dump({"kind": "given", "frame_shift": base.frame_shift}))
    about = {
        "features": str(e.features(preset, split)),
        "model": str(e.model(SAT)),
        "values": projected.projection.dim if projected.projection else None,
        "transforms": str(transforms) if transforms else None,
        "speakers": len(projected.transforms),
        "along": along,
    }
    write_json(out / "adapted.json", about)


def align_adapted(e: Experiment) -> None:
    """Align train and dev by SAT's GMMs, on their adapted features."""
    model, feats = speaker_model(load_recognizer(e.model(SAT))), adapted_features(e)
    assert model is not None
    recognizer = model.recognizer_with(model.recognizer.graph)
    for split in (e.train, "dev"):
        marked = Marked(feats[split][0])
        align_split(recognizer, marked, e.data(split), e.alignment(SAT, split), e.jobs)


def pack_adapted(e: Experiment) -> None:
    """Pack the adapted features of train and dev with SAT's senones; for convolutions, after mel bins.

    The transforms of training were estimated along the transcripts, so a network that sees only these features relies
    on them more than it can on those of a test. Each utterance of training is therefore packed a second time without
    its speaker's transform.
    """
    labels = {split: IntArkReader(e.alignment(SAT, split) / "ali.ark") for split in (e.train, "dev")}
    num_pdfs, bins = load_hmm(e.model(SAT)).num_pdfs, e.recipe.features if e.reads_bins else None
    _pack_twice(e, e.sat_network, labels, num_pdfs, e.training.dtype, {"alignment": SAT}, bins)
    given = {"kind": "given", "pitch": None, "deltas": 0, "cmvn": "none", "norm_vars": False, "global_stats": None}
    _write_features(e, e.sat_network, bins or e.recipe.hmm.features, {} if bins else given)


def pack_adapted_lfmmi(e: Experiment) -> None:
    """Pack mel bins, the adapted features after them, and phones, as `pack_adapted` does."""
    assert e.recipe.lfmmi is not None
    labels = {split: IntArkReader(e.alignment(e.bootstrap, split) / "labels.ark") for split in (e.train, "dev")}
    info = {"alignment": e.bootstrap, "labels": "phones"}
    dtype, left_out = e.recipe.lfmmi.training.dtype, read_json(e.model(LFMMI_HMM) / TOO_SHORT)
    _pack_twice(e, SAT_LFMMI, labels, num_phone_labels(e), dtype, info, e.feature_preset(LFMMI), left_out)
    _write_features(e, SAT_LFMMI, e.feature_preset(LFMMI), {})


def _write_features(e: Experiment, network: str, preset: str, changes: Mapping[str, Any]) -> None:
    """Write the features of a network: those of a preset, changed, and the adapted ones after them."""
    path = e.features(preset, e.train) / FEATURES_FILE
    config = parse(FeatureConfig, read_yaml(path), path)
    config = config.model_copy(update={**changes, "adapted": _projection(e.model(SAT)).dim})
    write_text(e.frames(network) / FEATURES_FILE, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def _pack_twice(
    e: Experiment,
    system: str,
    labels: Mapping[str, Mapping[str, np.ndarray]],
    num_labels: int,
    dtype: Literal["float16", "float32"],
    info: dict[str, Any],
    bins: str | None = None,
    left_out: Collection[str] = (),
) -> None:
    """Pack train and dev; `bins`: the preset of features that come before the adapted ones."""
    feats, info = adapted_features(e), {**e.about_data, **info}
    for split, name in ((e.train, "train.frames"), ("dev", "heldout.frames")):
        projected = feats[split][0]
        names = {key: key for key in labels[split] if key not in left_out}
        if split == e.train:
            names |= {f"{key}{UNADAPTED}": key for key in names if projected.speaker_of[key] in projected.transforms}
        values: Mapping[str, np.ndarray] = ComputedMapping(names, partial(_with_or_without, projected))
        if bins:
            before = ArkReader(e.features(bins, split) / "feats.scp")
            values = SideBySide([ComputedMapping(names, partial(_of_original, before)), values])
        targets = ComputedMapping(names, partial(_of_original, labels[split]))
        out = e.frames(system) / name
        write_frames(out, values, targets, num_labels, utterances=list(names), dtype=dtype, info=info)


def _of_original(values: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return values[name.removesuffix(UNADAPTED)]


def _with_or_without(projected: Projected, name: str) -> np.ndarray:
    key = name.removesuffix(UNADAPTED)
    return projected[key] if key == name else projected.unadapted(key)


def train_adapted(e: Experiment) -> None:
    """Train the network on adapted features; SAT's HMM and graph are copied into its model directory."""
    from speech3.train import train

    out = e.model(e.sat_network)
    if e.sat_training != e.recipe.training:
        say("  there are no mel bins: training without frequency warps, masks and speeds")
    config = TrainConfig(
        frames=str(e.frames(e.sat_network)),
        hmm=str(e.model(SAT)),
        model=e.sat_model(_projection(e.model(SAT)).dim),
        training=as_begun(e, e.sat_training, "", out),
        seed=e.recipe.seed,
    )
    train(config, out)


def train_adapted_lfmmi(e: Experiment, system: str) -> None:
    """Train an LF-MMI network on mel bins and adapted features, in half as many passes over twice as much.

    The teacher of `LFMMI_TAUGHT` (`config_of`) is the mean of the networks without and with adapted features.
    """
    config = config_of(e, system)
    passes = -(-config.training.max_epochs // 2)
    say(f"  {passes} passes, since nearly every utterance is there twice: with and without its speaker's transform")
    model = config.model.model_copy(update={"adapted": _projection(e.model(SAT)).dim})
    training = config.training.model_copy(update={"max_epochs": passes})
    changes = {"frames": str(e.frames(SAT_LFMMI)), "model": model, "training": training, "init": None}
    train_group(config.model_copy(update=changes), e.model(system), LFMMI)


def make_mean(e: Experiment) -> None:
    """Write the model of the networks `LFMMI` and `SAT_LFMMI`, whose mel bins are the features of the former."""
    out, adapted = e.model(LFMMI_MEAN), e.model(SAT_LFMMI)
    copy_model_files(out, e.model(LFMMI_HMM), adapted)
    save_mean(out / MODEL_FILE, [e.model(LFMMI), adapted])
