"""The steps of an experiment, in order, and the run of a recipe."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from speech3.config import MAY_CHANGE_ON_RESUME, FeatureConfig, ModelConfig, TrainingConfig, check_frequencies
from speech3.corpora import anyspeech
from speech3.errors import SettingError, Speech3Error
from speech3.io import DENOMINATOR_FILE, GRAPH_DIR, HCLG_FILE, HMM_FILE, MODEL_FILE
from speech3.language import check_pronounceable, find_lang
from speech3.recipe import evaluation, language, negatives, selftrain, speakers, stages
from speech3.recipe.costs import cost_remarks, expected_costs, hours_of_speech, totals_table, values_per_frame
from speech3.recipe.experiment import (
    ADAPTED_STAGE,
    BMMI,
    FLAT,
    FLAT_HMM,
    LDA,
    LFMMI,
    LFMMI_HMM,
    LFMMI_MEAN,
    LFMMI_TAUGHT,
    NEGATIVES,
    SAT,
    SAT_LFMMI,
    SAT_WORDS,
    SELF,
    UNTRANSCRIBED,
    Experiment,
    decode_step,
    on_sat,
    rescore_step,
    train_step,
)
from speech3.recipe.sizes import open_sizes
from speech3.recipe.steps import Plan, Step, describe_plan, ended_ns, is_done, make_plan, run_plan
from speech3.runtime import console

_DATA = "data"  # the first stage, after which the amount of speech is known
_SELF_STAGE = "self"
_CHOOSE = f"{_SELF_STAGE}/choose"  # after it, it is known whether self-training has anything to train on
_PARTS = ("train", "heldout")  # of packed frames


def planned_steps(e: Experiment) -> list[Step]:
    """All steps of an experiment, in order."""
    steps = [*_data_steps(e), *_feature_steps(e), *_bootstrap_steps(e), *_transformed_steps(e), *_alignment_steps(e)]
    if e.recipe.lfmmi:
        steps.append(_lfmmi_hmm_step(e))
    steps += _graph_steps(e)
    if BMMI in e.trained:
        config = {"hmm.bmmi": e.recipe.hmm.bmmi.model_dump()}
        steps.append(_model_step(train_step(BMMI), partial(stages.train_bmmi, e), e.model(BMMI), config, ["hmm/align"]))
    steps += _pretraining_steps(e)
    for network in e.networks:
        steps += _network_steps(e, network)
    if e.recipe.lfmmi:
        steps += _lfmmi_steps(e)
    steps += [
        _decode_step(e, system, [*([train_step(system)] if system in e.trained else []), f"graph/{e.hmm_of(system)}"])
        for system in e.systems
        if system != SELF and not on_sat(system)
    ]
    steps += _adapted_steps(e)
    if SELF in e.trained:
        steps += _self_steps(e)
    return [*steps, *_rescore_steps(e), *_score_steps(e)]


def _model_step(
    name: str, run: Callable[[], None], directory: Path, config: Mapping[str, Any], needs: Sequence[str], **more: Any
) -> Step:
    """A step that makes a model directory."""
    return Step(name, run, config, [directory / MODEL_FILE], needs, owns=directory, **more)


def _frames(directory: Path) -> list[Path]:
    return [directory / f"{part}.frames" for part in _PARTS]


def _data_steps(e: Experiment) -> list[Step]:
    recipe = e.recipe
    keys = ["corpus", "corpus_options", "seed", "lang", "lexicon", "units", "pieces"]
    keys += [key for key in ("tier", "graphemes") if getattr(recipe, key)]
    keys += ["background"] if recipe.background is not None else []
    steps = [
        Step(
            "data/corpus",
            partial(stages.make_data, e),
            {key: getattr(recipe, key) for key in keys},
            [*(e.data(split) / "wav.scp" for split in ("train", "dev", "test")), e.lexicon],
            inputs=[path for path in (e.source, recipe.graphemes and Path(recipe.graphemes)) if path],
            owns=e.out / "data",
        )
    ]
    if recipe.speed_perturb:
        run, config = partial(stages.perturb_train, e), {"speed_perturb": recipe.speed_perturb}
        out = e.data(e.speech)
        steps.append(Step("data/speed", run, config, [out / "wav.scp"], ["data/corpus"], owns=out, bulky=True))
    if recipe.negatives:
        given = [Path(recipe.negatives.recordings)] if recipe.negatives.recordings else []
        settings = {"negatives": recipe.negatives.model_dump(), "seed": recipe.seed, "sounds": negatives.SOUNDS}
        out = e.data(e.train)
        outputs, run = [out / "wav.scp", e.data(NEGATIVES) / "wav.scp"], partial(negatives.make_data, e)
        steps.append(Step("data/negatives", run, settings, outputs, [steps[-1].name], given, owns=out, bulky=True))
    if recipe.augment:
        given = [Path(path) for path in (recipe.augment.noise_dir, recipe.augment.rir_dir) if path]
        settings, out = {"augment": recipe.augment.model_dump(), "seed": recipe.seed}, e.data(e.augmented)
        run, needs = partial(stages.augment_train, e), [steps[-1].name]
        steps.append(Step("data/augment", run, settings, [out / "wav.scp"], needs, given, owns=out, bulky=True))
    if SELF in e.trained:
        assert recipe.untranscribed is not None
        out, given = e.data(UNTRANSCRIBED), [Path(recipe.untranscribed.recordings)]
        run, needs = partial(selftrain.make_data, e), ["data/corpus"]
        steps.append(Step(f"data/{UNTRANSCRIBED}", run, {}, [out / "wav.scp"], needs, given, owns=out))
    return steps


def _extracted(preset: str) -> str:
    return f"features/{Path(preset).stem}"


def _feature_steps(e: Experiment) -> list[Step]:
    steps = []
    for name, config in e.presets.items():
        run, files = partial(stages.extract_features, e, name), [e.features(name, split) for split in e.extracted]
        outputs = [path / "feats.scp" for path in files]
        given = {"data/negatives": e.recipe.negatives, "data/speed": e.recipe.speed_perturb, "data/corpus": True}
        needs = [next(step for step, used in given.items() if used)]
        settings = {name: config.model_dump()}
        steps.append(Step(_extracted(name), run, settings, outputs, needs, owns=files[0].parent, bulky=True))
    if e.recipe.augment:
        outputs = [e.features(name, e.augmented) / "feats.scp" for name in e.network_features]
        needs = ["data/augment", *map(_extracted, e.network_features)]
        steps.append(Step("features/augmented", partial(stages.extract_augmented, e), {}, outputs, needs))
    if SELF in e.trained:
        preset = e.feature_preset(LFMMI)
        run, outputs = partial(selftrain.extract_features, e), [e.features(preset, UNTRANSCRIBED) / "feats.scp"]
        needs = [f"data/{UNTRANSCRIBED}", _extracted(preset)]
        steps.append(Step(f"features/{UNTRANSCRIBED}", run, {}, outputs, needs))
    return steps


def _packed(e: Experiment, preset: str) -> list[str]:
    """The steps whose features are packed for a network: those of augmented copies, too."""
    return [*(["features/augmented"] if e.recipe.augment else []), _extracted(preset)]


def _packing(e: Experiment, key: str, dtype: str) -> dict[str, Any]:
    """The settings of packed frames; without augmentation, frames of an earlier run with copies are packed anew."""
    return {key: dtype, **({"augment": True} if e.recipe.augment else {})}


def _questions(e: Experiment) -> list[Path]:
    return [Path(e.recipe.hmm.extra_questions)] if e.recipe.hmm.extra_questions else []


def _hmm_settings(e: Experiment) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys that all GMMs depend on, and the groups of keys of `mono`, `tri` and `aligner`."""
    hmm = e.recipe.hmm.model_dump(exclude={"features", "aligner_features", "flat_start", "bmmi", "lda", "sat"})
    groups = {name: hmm.pop(name) for name in ("mono", "tri", "aligner")}
    groups["tri"].pop("discriminative")  # it does not affect these GMMs
    return {**hmm, "seed": e.recipe.seed}, groups


def _bootstrap_steps(e: Experiment) -> list[Step]:
    """The steps from words to the first alignment: by GMMs, or by a network."""
    shared, groups = _hmm_settings(e)
    if e.bootstrap == FLAT:
        return _flat_steps(e, shared)
    mono, tri = {"hmm": shared, "hmm.mono": groups["mono"]}, {"hmm.tri": groups["tri"]}
    features = [_extracted(e.recipe.hmm.features)]
    return [
        _model_step("hmm/mono", partial(stages.train_mono, e, "mono"), e.model("mono"), mono, features),
        _model_step("hmm/tri", partial(stages.train_tri, e), e.model("tri"), tri, ["hmm/mono"], inputs=_questions(e)),
    ]


def _flat_steps(e: Experiment, shared: Mapping[str, Any]) -> list[Step]:
    flat, lfmmi = e.recipe.flat, e.recipe.lfmmi
    assert lfmmi is not None
    check_frequencies(flat.model, e.presets[lfmmi.features], f"lfmmi.features={lfmmi.features}", "flat.")
    packing = {
        "hmm": shared,
        "flat.longest_s": flat.longest_s,
        "flat.training.dtype": flat.training.dtype,
        "lfmmi.extra_lm_states": lfmmi.extra_lm_states,
    }
    training = {
        "flat.model": flat.model.model_dump(),
        "flat.training": flat.training.model_dump(),
        "seed": e.recipe.seed,
    }
    outputs = [e.model(FLAT_HMM) / DENOMINATOR_FILE, *_frames(e.frames(FLAT))]
    run, needs = partial(stages.prepare_flat, e), [_extracted(lfmmi.features)]
    return [
        Step("hmm/flat.frames", run, packing, outputs, needs, owns=e.frames(FLAT)),
        _model_step(
            "hmm/flat",
            partial(stages.train_flat, e),
            e.model(FLAT),
            training,
            ["hmm/flat.frames"],
            open_keys=_not_computed("flat."),
            elastic=_elastic(e, "flat."),
        ),
    ]


def _transformed_steps(e: Experiment) -> list[Step]:
    """The steps of the GMMs on transformed features, `lda` and `sat`."""
    steps = []
    for name, train, before in ((LDA, speakers.train_lda_system, "tri"), (SAT, speakers.train_sat_system, LDA)):
        if name in e.gmms:
            config = {f"hmm.{name}": getattr(e.recipe.hmm, name).model_dump(exclude={"min_minutes"})}
            run, needs = partial(train, e), [f"hmm/{before}"]
            steps.append(_model_step(f"hmm/{name}", run, e.model(name), config, needs, inputs=_questions(e)))
    return steps


def _alignment_steps(e: Experiment) -> list[Step]:
    """The alignment that networks learn from; and the aligner, whose alignments are inspected."""
    first, preset = e.bootstrap, e.recipe.hmm.aligner_features
    shared, groups = _hmm_settings(e)
    config = {"hmm": shared, "hmm.aligner": groups["aligner"]}
    train = partial(stages.train_mono, e, "aligner")
    return [
        _align_step(
            e, "hmm/align", first, e.feature_preset(first), (e.train, "dev"), f"hmm/{first}", ("ali", "labels")
        ),
        _model_step("hmm/aligner", train, e.model("aligner"), config, [_extracted(preset)]),
        _align_step(e, "hmm/boundaries", "aligner", preset, ("dev", "test"), "hmm/aligner"),
    ]


def _align_step(
    e: Experiment,
    name: str,
    system: str,
    preset: str,
    splits: tuple[str, str],
    after: str,
    archives: Sequence[str] = ("ali",),
) -> Step:
    outputs = [e.alignment(system, split) / f"{archive}.ark" for split in splits for archive in archives]
    return Step(name, partial(stages.align_data, e, system, preset, splits), {}, outputs, [after])


def _lfmmi_hmm_step(e: Experiment) -> Step:
    system, hmm = e.recipe.lfmmi, e.model(LFMMI_HMM)
    assert system is not None
    config = {"lfmmi.leaves": system.leaves, "lfmmi.extra_lm_states": system.extra_lm_states}
    outputs, needs, questions = [hmm / DENOMINATOR_FILE, hmm / HMM_FILE], ["hmm/align"], list[Path]()
    if e.bootstrap == FLAT:  # otherwise tri has needed these
        needs, questions = [*needs, _extracted(e.recipe.hmm.features)], _questions(e)
    return Step("hmm/lfmmi", partial(stages.train_lfmmi_hmm, e), config, outputs, needs, questions, owns=hmm)


def _graph_steps(e: Experiment) -> list[Step]:
    lm = e.recipe.lm
    given = [Path(path) for path in (lm.text, lm.arpa) if path]
    settings: dict[str, Any] = {
        "lm": lm.model_dump(exclude={"self_loop_scale", "rescore", "letters", "filler"}),
        "text": "the lexicon's words; dev's sentences apart",
    }
    if e.recipe.letters:
        settings["lm.letters"] = e.recipe.letters
    arpa = [] if lm.grammar else [e.out / "lm" / "lm.arpa.gz"]
    steps = [Step("graph/lm", partial(language.make_lm, e), settings, arpa, ["data/corpus"], given)]
    if isinstance(lm.rescore, int):
        run, config = partial(language.make_rescoring_lm, e), {**settings, "lm.rescore": lm.rescore}
        steps.append(Step("graph/rescore", run, config, [e.rescoring_lm], ["graph/lm"], given))
    elif neural := e.rescoring_config:
        out = e.rescoring_lm
        run, config = partial(language.train_rescoring_lm, e, neural), {**settings, "lm.rescore": neural.model_dump()}
        free, elastic = ["lm.rescore.device"], ["lm.rescore.epochs", "lm.rescore.workers"]
        steps.append(
            Step("graph/rescore", run, config, [out], ["graph/lm"], given, owns=out, open_keys=free, elastic=elastic)
        )
    config = {f"lm.{key}": getattr(lm, key) for key in ("grammar", "self_loop_scale", "filler")}
    config |= {"negatives": True} if e.recipe.negatives else {}
    for name in (*e.gmms, *([LFMMI_HMM] if e.recipe.lfmmi else [])):
        run, outputs = partial(language.make_graphs, e, name), [e.model(name) / GRAPH_DIR / HCLG_FILE]
        needs = ["graph/lm", f"hmm/{LFMMI if name == LFMMI_HMM else name}"]
        steps.append(Step(f"graph/{name}", run, config, outputs, needs))
    return steps


def _check_convolutions(model: ModelConfig, features: FeatureConfig, prefix: str = "") -> None:
    """Refuse convolutions that do not fit the features, before these are extracted and aligned."""
    from speech3.models import build

    if features.kind != "given" and getattr(model, "convolutions", None) and getattr(model, "width", 1):
        try:
            build(model, values_per_frame(features), 1, seed=0)
        except Speech3Error as error:
            raise error.restated(f"{prefix}{error}") from error


def _check_outputs(model: ModelConfig) -> None:
    """Refuse a network that cannot learn the triphones' senones, before they are made."""
    for key, wrong in (("subsampling=3", model.subsampling == 3), ("two_outputs=true", model.two_outputs)):
        if wrong:
            raise SettingError(
                f"model.{key}: only for LF-MMI, whose network is lfmmi.model; model learns the triphones' senones, by"
                " cross-entropy, with one output for every frame: remove the key"
            )


def _pretrained(e: Experiment, system: str) -> list[str]:
    return [f"train/pretrained.{path.name}"] if (path := e.pretrained(system)) else []


def _pretraining_steps(e: Experiment) -> list[Step]:
    """The steps that pretrain a network of each kind, on recordings without transcripts."""
    given, steps = e.recipe.pretrain, list[Step]()
    for system in (*e.networks[:1], *([LFMMI] if e.recipe.lfmmi else [])):
        path = e.pretrained(system)
        if given is None or path is None:
            continue
        model, group = (e.recipe.lfmmi.model, "lfmmi.") if e.recipe.lfmmi and system == LFMMI else (e.recipe.model, "")
        config = {"pretrain": given.model_dump(), f"{group}model": model.model_dump(), "seed": e.recipe.seed}
        run, needs = partial(stages.pretrain_network, e, system), ["data/corpus", _extracted(e.feature_preset(system))]
        (name,), inputs = _pretrained(e, system), [Path(given.recordings)]
        steps.append(_model_step(name, run, path, config, needs, inputs=inputs, open_keys=open_sizes(e.recipe)))
    return steps


def _not_computed(prefix: str) -> list[str]:
    return [f"{prefix}training.{key}" for key in MAY_CHANGE_ON_RESUME]


def _open_keys(e: Experiment) -> list[str]:
    """Sizes that are not known yet, and workers that the machine determines: on another, nothing is trained again."""
    return [*open_sizes(e.recipe), *e.workers_chosen]


def _elastic(e: Experiment, prefix: str) -> list[str]:
    """The keys of training that may change when a killed run is resumed."""
    return [*_not_computed(prefix), f"{prefix}training.workers", *e.workers_chosen]


def _senone_training(e: Experiment, training: TrainingConfig) -> dict[str, Any]:
    """The settings of a network that learns senones, and which of them do not count or may change."""
    return {
        "config": {"model": e.recipe.model.model_dump(), "training": training.model_dump(), "seed": e.recipe.seed},
        "open_keys": [*_open_keys(e), *_not_computed("")],
        "elastic": _elastic(e, ""),
    }


def _started(e: Experiment, system: str) -> list[Path]:
    return [start.file] if (start := e.start(system)) else []


def _network_steps(e: Experiment, network: str) -> list[Step]:
    """The steps of a network that learns senones; the first from the triphones, others from the one before."""
    preset, source = e.recipe.features, e.label_source(network)
    check_frequencies(e.recipe.model, e.presets[preset], f"features={preset}")
    _check_outputs(e.recipe.model)
    _check_convolutions(e.recipe.model, e.presets[preset])
    steps, aligned = [], "hmm/align"
    if source != "tri":
        aligned = f"train/{network}.align"
        steps.append(_align_step(e, aligned, source, preset, (e.train, "dev"), train_step(source)))
    out, packed = e.frames(network), f"train/{e.frames_name(network)}.frames"
    run, config = partial(stages.pack_frames, e, network), _packing(e, "training.dtype", e.training.dtype)
    steps.append(Step(packed, run, config, _frames(out), [aligned, *_packed(e, preset)], owns=out, bulky=True))
    steps.append(
        _model_step(
            train_step(network),
            partial(stages.train_network, e, network),
            e.model(network),
            needs=[packed, *_pretrained(e, network)],
            inputs=_started(e, network),
            **_senone_training(e, e.training),
        )
    )
    return steps


def _lfmmi_steps(e: Experiment) -> list[Step]:
    system = e.recipe.lfmmi
    assert system is not None
    check_frequencies(system.model, e.presets[system.features], f"lfmmi.features={system.features}", "lfmmi.")
    _check_convolutions(system.model, e.presets[system.features], "lfmmi.")
    out, packed = e.frames(LFMMI), f"train/{LFMMI}.frames"
    packing, needs = _packing(e, "lfmmi.training.dtype", system.training.dtype), _packed(e, system.features)
    pack, train = partial(stages.pack_lfmmi_frames, e, out), partial(stages.train_lfmmi, e)
    return [
        Step(packed, pack, packing, _frames(out), ["hmm/lfmmi", *needs], owns=out, bulky=True),
        _lfmmi_training(e, LFMMI, train, [packed, *_pretrained(e, LFMMI)], _started(e, LFMMI)),
    ]


def _lfmmi_training(
    e: Experiment, system: str, train: Callable[[], None], needs: Sequence[str], started: Sequence[Path] = ()
) -> Step:
    lfmmi = e.recipe.lfmmi
    assert lfmmi is not None
    replaced = [] if lfmmi.passes is None else ["lfmmi.training.max_epochs"]  # passes replaces it
    replaced += [] if system == LFMMI_TAUGHT else ["lfmmi.training.lfmmi.teaching"]
    config = {
        "lfmmi.model": lfmmi.model.model_dump(),
        "lfmmi.training": lfmmi.training.model_dump(),
        "lfmmi.passes": lfmmi.passes,
        "seed": e.recipe.seed,
    }
    return _model_step(
        train_step(system),
        train,
        e.model(system),
        config,
        needs,
        inputs=list(started),
        open_keys=[*_open_keys(e), *_not_computed("lfmmi."), *replaced],
        elastic=_elastic(e, "lfmmi."),
    )


def _decode_step(e: Experiment, system: str, needs: Sequence[str]) -> Step:
    out, run = e.out / "decode" / system, partial(evaluation.decode_system, e, system)
    splits = ("test", "dev") if system == LFMMI and e.adapts_to_lfmmi else ("test",)
    needs = [*needs, *(["hmm/align"] if e.recipe.negatives else [])]  # for the lengths of words
    return Step(decode_step(system), run, e.decoding, [out / each / "hyp.txt" for each in splits], needs, owns=out)


def _rescore_steps(e: Experiment) -> list[Step]:
    # Apart from decoding: a finished recipe that gets `lm.rescore` later does not train its adapted networks anew.
    if e.recipe.lm.rescore is None:
        return []
    needs, inputs = (["graph/rescore"], []) if e.makes_rescoring_lm else ([], [e.rescoring_lm])
    return [
        Step(
            rescore_step(system),
            partial(evaluation.rescore_system, e, system),
            e.rescoring,
            [e.out / "decode" / system / evaluation.RESCORED / "hyp.txt"],
            [decode_step(system), *needs],
            inputs,
        )
        for system in e.systems
    ]


def _adapted_steps(e: Experiment) -> list[Step]:
    """The steps after decoding with `sat`: its adapted features, and the networks that learn from them."""
    if SAT not in e.gmms:
        return []
    features, aligned = f"{ADAPTED_STAGE}/features", f"{ADAPTED_STAGE}/align"
    files = [e.features(SAT, split) for split in e.splits]
    run, outputs = partial(speakers.write_adapted_features, e), [path / "feats.scp" for path in files]
    steps = [Step(features, run, {}, outputs, [decode_step(SAT)], owns=files[0].parent, bulky=True)]
    # What decoding reads: with an LF-MMI system, features that are adapted to its words.
    read = features
    if e.adapts_to_lfmmi:
        read, places = f"{ADAPTED_STAGE}/words", [e.features(SAT_WORDS, split) for split in ("dev", "test")]
        run, outputs = partial(speakers.write_features_of_words, e), [path / "feats.scp" for path in places]
        needs = [decode_step(LFMMI), f"hmm/{SAT}"]
        steps.append(Step(read, run, {}, outputs, needs, owns=places[0].parent, bulky=True))
    for network in e.adapted:
        out = e.frames(network)
        if network == e.sat_network:
            assert e.recipe.hmm.lda is not None
            e.sat_model(e.recipe.hmm.lda.dim)  # for its errors
            outputs = [e.alignment(SAT, split) / "ali.ark" for split in (e.train, "dev")]
            steps.append(Step(aligned, partial(speakers.align_adapted, e), {}, outputs, [features]))
            needs = [aligned, *([_extracted(e.recipe.features)] if e.reads_bins else [])]
            packed, pack = f"{ADAPTED_STAGE}/{e.frames_name(network)}.frames", speakers.pack_adapted
            config = {"training.dtype": e.training.dtype}
            run, training = partial(speakers.train_adapted, e), _senone_training(e, e.sat_training)
            train = _model_step(train_step(network), run, e.model(network), needs=[packed], **training)
        else:
            assert e.recipe.lfmmi is not None
            needs = [features, "hmm/lfmmi", _extracted(e.recipe.lfmmi.features)]
            packed, pack = f"{ADAPTED_STAGE}/{network}.frames", speakers.pack_adapted_lfmmi
            config = {"lfmmi.training.dtype": e.recipe.lfmmi.training.dtype}
            train = _lfmmi_training(e, network, partial(speakers.train_adapted_lfmmi, e, network), [packed])
        steps.append(Step(packed, partial(pack, e), config, _frames(out), needs, owns=out, bulky=True))
        steps += [train, _decode_step(e, network, [train_step(network), f"graph/{e.hmm_of(network)}", read])]
    if LFMMI_MEAN in e.trained:
        made, needs = train_step(LFMMI_MEAN), [train_step(LFMMI), train_step(SAT_LFMMI)]
        steps.append(_model_step(made, partial(speakers.make_mean, e), e.model(LFMMI_MEAN), {}, needs))
        steps.append(_decode_step(e, LFMMI_MEAN, [made, f"graph/{LFMMI_HMM}", read]))
    if LFMMI_TAUGHT in e.trained:
        needs = [f"{ADAPTED_STAGE}/{SAT_LFMMI}.frames", train_step(LFMMI_MEAN)]
        steps.append(_lfmmi_training(e, LFMMI_TAUGHT, partial(speakers.train_adapted_lfmmi, e, LFMMI_TAUGHT), needs))
        steps.append(_decode_step(e, LFMMI_TAUGHT, [train_step(LFMMI_TAUGHT), f"graph/{LFMMI_HMM}", read]))
    return steps


def _self_steps(e: Experiment) -> list[Step]:
    given, out = e.recipe.untranscribed, e.out / "self"
    assert given is not None
    frames, labels = e.frames(SELF), [out / "labels.ark"]
    heard = [decode_step(LFMMI), f"features/{UNTRANSCRIBED}"]
    choice = {"untranscribed.confidence": given.confidence}
    pack, train = partial(selftrain.pack_frames, e), partial(selftrain.train_network, e)
    needs = ["self/frames", train_step(LFMMI)]
    hypotheses = e.out / "decode" / SELF
    return [
        Step("self/transcribe", partial(selftrain.transcribe, e), {}, [out / "hyp.ctm"], heard, owns=out),
        Step(_CHOOSE, partial(selftrain.choose, e), choice, labels, ["self/transcribe"]),
        Step("self/frames", pack, {}, _frames(frames), [_CHOOSE, f"train/{LFMMI}.frames"], owns=frames, bulky=True),
        _model_step(train_step(SELF), train, e.model(SELF), {}, needs, elastic=_elastic(e, "lfmmi.")),
        Step(
            decode_step(SELF),
            partial(evaluation.decode_system, e, SELF),
            {},
            [hypotheses / "test" / "hyp.txt"],
            [train_step(SELF), decode_step(LFMMI)],
            owns=hypotheses,
        ),
    ]


def _score_steps(e: Experiment) -> list[Step]:
    earlier = {name: _ended(e.out, decode_step(name)) for name in e.earlier}
    config, needs = {"earlier systems": earlier or None, "systems": list(e.systems)}, list(map(decode_step, e.systems))
    if rescored := _rescore_steps(e):
        config, needs = config | e.rescoring, needs + [step.name for step in rescored]
    scores = [e.out / "score" / system / "score.json" for system in e.systems]
    steps = [Step("score", partial(evaluation.score_systems, e), config, scores, needs)]
    if e.recipe.corpus in evaluation.BOUNDARIES:
        run, outputs = partial(evaluation.score_boundaries, e), [e.out / "score" / "aligner" / "boundaries.json"]
        steps.append(Step("score/boundaries", run, {}, outputs, ["hmm/boundaries"]))
    page = [e.out / "report.html"]
    return [*steps, Step("report", partial(evaluation.report, e), {}, page, ["score", "hmm/boundaries"])]


def _ended(out: Path, name: str) -> str:
    return datetime.fromtimestamp((ended_ns(out, name) or 0) / 1e9).isoformat(" ", "milliseconds")


def run_recipe(e: Experiment, from_stage: str | None = None, to: str | None = None, *, dry_run: bool = False) -> None:
    """Plan an experiment and run it, or with `dry_run` print the plan and its costs.

    The plan is made again when more is known: sizes and systems after the stage `data`, and after choosing utterances
    for self-training whether there are any. `from_stage`: this stage and all later ones run again. `to`: a stage, after
    which it stops; or a system, which is decoded: only what it needs runs.

    Raises
    ------
    Speech3Error
        A stage or system is unknown, a stage must not be left out, another run is using the directory; also what the
        steps raise.
    """
    settled = not e.follows_speech
    if not settled and from_stage != _DATA and is_done(planned_steps(e), e.out, _DATA):
        e, settled = e.settled(), True
    if settled and from_stage in (None, "rescore", "score", "report") and _chose_nothing(e):
        e, to = e.without_selftraining(), _without_selftraining(to)
    plan = _planned(e, from_stage, to)
    if dry_run:
        return _print_plan(e, plan, settled=settled)
    first = 0
    if not settled:
        run_plan(plan, e.out, end=sum(each.step.stage == _DATA for each in plan))
        e = e.settled()
        plan = _planned(e, from_stage, to)
        first = sum(each.step.stage == _DATA for each in plan)
    chosen = next((place for place, each in enumerate(plan, 1) if each.step.name == _CHOOSE), 0)
    if chosen:
        run_plan(plan, e.out, first=first, end=chosen)
        first = chosen
        if selftrain.found_nothing(e):  # the other systems are scored without it
            e, done = e.without_selftraining(), {each.step.name for each in plan[:chosen]}
            from_stage = None if from_stage == _SELF_STAGE else from_stage
            to = _without_selftraining(to)
            plan = _planned(e, from_stage, to)
            first = sum(each.step.name in done for each in plan)
    run_plan(plan, e.out, first=first)
    _print_results(e, to)


def _without_selftraining(to: str | None) -> str | None:
    """Where a run stops that was to stop at self-training, which has nothing to learn from."""
    return "decode" if to in (_SELF_STAGE, SELF) else to


def _planned(e: Experiment, from_stage: str | None, to: str | None) -> list[Plan]:
    steps = planned_steps(e)
    stages = dict.fromkeys(step.stage for step in steps)
    if to is not None and to not in (*stages, *e.systems):
        known = f"the stages are: {', '.join(stages)}; the systems: {', '.join(e.systems)}"
        raise SettingError(f"--to {to}: no such stage or system; {known}")
    return make_plan(steps, e.out, from_stage, decode_step(to) if to in e.systems else to)


def _chose_nothing(e: Experiment) -> bool:
    """Whether self-training is up to date and found nothing to learn from, so that its later steps never run."""
    if SELF not in e.trained or not selftrain.found_nothing(e):
        return False
    plan = make_plan(planned_steps(e), e.out, None, None)
    chosen = next(place for place, each in enumerate(plan, 1) if each.step.name == _CHOOSE)
    return not any(each.why for each in plan[:chosen])


def _print_plan(e: Experiment, plan: Sequence[Plan], *, settled: bool) -> None:
    if e.source and any(each.why for each in plan if each.step.stage == _DATA):
        if e.recipe.corpus == "any":
            anyspeech.check_source(e.source, e.recipe.sample_rate)
        if e.recipe.corpus in language.WITH_LANG:
            spelled = e.recipe.lexicon == "graphemes" or e.recipe.units == "sentencepiece"
            check_pronounceable(find_lang(e.source / "lang").lexicon, e.recipe.lang, spelled=spelled)
    if not settled:
        for key, minutes in e.min_minutes.items():
            group = {"lfmmi.min_minutes": LFMMI, "hmm.lda.min_minutes": "lda and sat"}.get(key)
            which = f"The steps of {group or 'networks'}"
            print(f"{which} run only if there are at least {minutes:g} minutes to train on ({key}).")
    speech = hours_of_speech(e, plan)
    expected = expected_costs(e, speech) if speech else {}
    print(*[line for line in (speech, describe_plan(plan, cost_remarks(expected, e.jobs))) if line], sep="\n")
    if any(each.why for each in plan):
        print(totals_table(expected, plan, e) if speech else "expected: not known before the stage data has run")


def _print_results(e: Experiment, to: str | None) -> None:
    if to not in (None, "report"):
        print(f"stopped after {to if to in e.systems else f'stage {to}'}; the results so far are in {e.out}")
        if to in e.systems:
            print(evaluation.score_of(e, to).line(e.name, to, e.recipe.metric))
        return
    if not console.quiet:
        print(evaluation.summary(e))
        if e.compared_with_published_results:
            print(evaluation.rows_to_paste(e))
    print("\n".join(evaluation.result_lines(e)))
