"""The steps of the systems `lda` and `sat`: GMMs on transformed features, and decoding with adaptation to speakers.

OUT/lda, OUT/sat                    model directories (`speech3.hmm.sat`)
OUT/sat/{trans.ark,trans.scp,spk2utt}   transforms of the speakers of training
OUT/decode/sat/test_passN           the words of each pass before the last: hyp.txt; the transforms from them: trans.*
OUT/features/sat/{train,dev,test}   features after LDA, MLLT and the speakers' transforms, for networks; those of dev
                                    and test are adapted to the words of the last pass but one
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from speech3.config import FeatureConfig, parse, read_yaml
from speech3.data import read_datadir
from speech3.decode import (
    DECODE_SETTINGS,
    Marked,
    Recognizer,
    Tuning,
    before_last_pass,
    load_recognizer,
    read_speakers,
    say_speakers,
    speaker_model,
    tune_recognizer,
    write_speakers,
)
from speech3.errors import DataError, MissingError, check_bad
from speech3.features import silent_in
from speech3.hmm import (
    ADAPTED,
    PASSES,
    GmmSystem,
    Projected,
    Projection,
    Transcripts,
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
from speech3.io import ArkReader, write_ark
from speech3.recipe.experiment import LDA, SAT, Experiment
from speech3.recipe.language import error_rate
from speech3.recipe.stages import save_gmms, sized_config, training_material
from speech3.runtime import Metrics, say, write_json, write_text

PASS = "test_pass{}"  # in decode/sat: the words of a pass before the last


def speakers_of(data: Path) -> dict[str, str]:
    return {key: utterance.speaker for key, utterance in read_datadir(data).utterances.items()}


def spliced_values(features: Path) -> tuple[int, int]:
    """How many values of a frame are static, which LDA splices, and how many there are; from a features.yaml.

    Raises
    ------
    Speech3Error
        The features are spliced already.
    """
    config = parse(FeatureConfig, read_yaml(features), features)
    if config.left_context or config.right_context:
        raise DataError(f"{features}: LDA splices frames itself; set left_context and right_context to 0")
    first = next(iter(ArkReader(features.parent / "feats.scp").values()))
    return first.shape[1] // (config.deltas + 1), first.shape[1]


@dataclass(frozen=True, eq=False)
class _Material:
    transcripts: Transcripts
    feats: ArkReader
    features: Path
    speaker_of: Mapping[str, str]


def _material(e: Experiment) -> _Material:
    _, transcripts, feats, features = training_material(e, e.recipe.hmm.features)
    return _Material(transcripts, feats, features, speakers_of(e.data(e.train)))


def _workers(e: Experiment, given: _Material) -> Workers:
    projected = Projected(given.feats, given.speaker_of)
    return Workers(given.transcripts.words, projected, e.jobs, given.speaker_of)


def train_lda_system(e: Experiment) -> None:
    """Train GMMs on features after LDA and MLLT, from the alignments of the triphones."""
    given = _material(e)
    tri = GmmSystem(load_hmm(e.model("tri")), load_gmm(e.model("tri") / "model.safetensors"), {})
    config = sized_transformed(sized_config(e, tri.hmm.lexicon), e.hours)
    generator, metrics = np.random.default_rng(e.recipe.seed), Metrics(e.model(LDA) / "metrics.jsonl")
    with _workers(e, given) as workers:
        realign = partial(train.realign, label="alignment by triphones")
        workers.run(realign, tri.hmm, tri.gmm, e.recipe.hmm.beam, e.recipe.hmm.retry_beam)
        found, projection = train_lda(workers, tri, config, spliced_values(given.features), generator, metrics)
    check_bad({**given.transcripts.bad, **found.failed}, len(given.feats), "training of lda")
    save_gmms(e, LDA, found, given.features, e.recipe.hmm.features)
    save_projection(e.model(LDA), projection)


def train_sat_system(e: Experiment) -> None:
    """Speaker-adaptive training from the system `lda`; the twin for unadapted features is the model's own GMMs."""
    given, lda = _material(e), e.model(LDA)
    first = GmmSystem(load_hmm(lda), load_gmm(lda / "model.safetensors"), {})
    projection = _projection(lda)
    config = sized_transformed(sized_config(e, first.hmm.lexicon), e.hours)
    assert config.sat is not None
    generator, metrics = np.random.default_rng(e.recipe.seed), Metrics(e.model(SAT) / "metrics.jsonl")
    with _workers(e, given) as workers:
        workers.run(use_projection, projection, {})
        realign = partial(train.realign, label="alignment by lda")
        workers.run(realign, first.hmm, first.gmm, e.recipe.hmm.beam, e.recipe.hmm.retry_beam)
        found = train_sat(workers, first, config, generator, metrics)
    check_bad({**given.transcripts.bad, **found.system.failed}, len(given.feats), "training of sat")
    save_gmms(e, SAT, found.system, given.features, e.recipe.hmm.features)
    save_projection(e.model(SAT), projection)
    save_adapted(e.model(SAT), found, config.sat, {"features": e.recipe.hmm.features})
    write_speakers(e.model(SAT), found.estimated.transforms, given.speaker_of)
    say_speakers(given.speaker_of, found.estimated)


def _projection(model: Path) -> Projection:
    found = load_projection(model)
    if found is None:
        raise MissingError(f"{model}: has no projection (lda.safetensors); run the recipe again --from hmm")
    return found


@dataclass(frozen=True, eq=False)
class OnDev:
    """Dev after all passes but the last.

    Attributes
    ----------
    first
        What the first pass reached.
    recognizer, feats
        The recogniser of the last pass, and the features for it.
    """

    first: Tuning
    recognizer: Recognizer
    feats: Mapping[str, np.ndarray]


def passes_on_dev(e: Experiment, dev: ArkReader) -> OnDev:
    """Run all passes of `sat` but the last over dev: the first is tuned, later ones use its settings."""
    metric, directory = e.recipe.metric, e.model(SAT)
    config = e.recipe.decode.model_copy(update={"metric": metric})
    references = {key: (u.text or "").split() for key, u in read_datadir(e.data("dev")).utterances.items()}
    speaker_of = speakers_of(e.data("dev"))
    first = tune_recognizer(load_recognizer(directory), dev, references, config, e.jobs, error_rate(metric))
    say(f"  pass 1: dev {metric} {100 * first.best.error_rate:.2f} %")
    for left in (DECODE_SETTINGS, PASSES):  # of an earlier run, until the last pass is tuned
        (directory / ADAPTED / left).unlink(missing_ok=True)
    model = speaker_model(load_recognizer(directory))
    assert model is not None
    recognizer = model.recognizer_with(model.recognizer.tuning_graph)
    words = {key: " ".join(each) for key, each in first.words.items()}
    transforms = model.transforms(dev, speaker_of, words, {}, e.jobs).transforms
    for _ in range(2, model.adapted.passes):
        adapted = Marked(model.projected(dev, speaker_of, transforms))
        words = {h.utterance: " ".join(h.units) for h in recognizer.decode(adapted, e.jobs).hypotheses}
        transforms = model.transforms(dev, speaker_of, words, transforms, e.jobs).transforms
    write_speakers(e.out / "decode" / SAT / "dev_transforms", transforms, speaker_of)
    return OnDev(first, recognizer, Marked(model.projected(dev, speaker_of, transforms)))


def settle_passes(e: Experiment, found: Tuning, first: Tuning) -> Tuning:
    """Keep only the first pass, if the last is worse on dev; return what counts."""
    if found.best.error_rate <= first.best.error_rate:
        return found
    say("  adapting to speakers does not help on dev, so test is decoded in one pass")
    write_json(e.model(SAT) / ADAPTED / PASSES, {"passes": 1})
    return first


def passes_on_test(e: Experiment, test: ArkReader) -> tuple[Recognizer, Mapping[str, np.ndarray], float]:
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
    place = partial(_place, out)
    recognizer, feats = before_last_pass(model, test, speakers_of(e.data("test")), place, e.jobs, silent)
    return recognizer, feats, time.monotonic() - start


def _place(out: Path, number: int) -> Path:
    return out / PASS.format(number)


def write_adapted_features(e: Experiment) -> None:
    """Write features after the projection and the speakers' transforms as feature directories, for networks.

    Those of training have the transforms estimated along the transcripts; those of dev and test have those with which
    the last pass was decoded. Speakers without a transform have only the projection. ``adapted.json`` says how they
    were made; ``features.yaml`` that they are given.
    """
    projection, preset = _projection(e.model(SAT)), e.recipe.hmm.features
    decoded = e.out / "decode" / SAT
    last = max(decoded.glob(PASS.format("*")), default=None, key=lambda path: int(path.name.removeprefix("test_pass")))
    made = {e.train: e.model(SAT), "dev": decoded / "dev_transforms", "test": last}
    for split, transforms in made.items():
        feats, out = ArkReader(e.features(preset, split) / "feats.scp"), e.features(SAT, split)
        known = read_speakers(transforms, projection.dim) if transforms else {}
        projected = Projected(feats, speakers_of(e.data(split)), projection, known)
        write_ark(out / "feats.ark", projected.items(), out / "feats.scp")
        write_text(out / "features.yaml", yaml.safe_dump({"kind": "given"}))
        write_json(out / "adapted.json", {
            "features": str(e.features(preset, split)), "model": str(e.model(SAT)), "values": projection.dim,
            "transforms": str(transforms) if transforms else None, "speakers": len(known),
            "along": "transcripts" if split == e.train else "recognised words",
        })  # fmt: skip
