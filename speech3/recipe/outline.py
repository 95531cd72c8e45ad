"""The steps of an experiment, in order: what each reads, writes and depends on."""

from datetime import datetime
from functools import partial
from pathlib import Path

from speech3.config import FeatureConfig, ModelConfig
from speech3.config.tdnn import check_frequencies
from speech3.config.training import NOT_COMPUTED
from speech3.errors import Speech3Error
from speech3.recipe.experiment import (
    BMMI,
    FLAT,
    FLAT_HMM,
    LFMMI,
    LFMMI_HMM,
    SELF,
    UNTRANSCRIBED,
    Experiment,
    decode_step,
)
from speech3.recipe.sizes import open_sizes
from speech3.recipe.steps import Step, ended_ns, make_plan

DATA = "data"  # the first stage, after which the amount of speech is known
SELF_STAGE = "self"
CHOOSE = f"{SELF_STAGE}/choose"  # after it, it is known whether self-training has anything to train on


def steps(experiment: Experiment) -> list[Step]:
    """All steps of an experiment, in order."""
    from speech3.recipe import evaluation, stages

    e, recipe = experiment, experiment.recipe
    optional = {key: value for key in ("tier", "graphemes") if (value := getattr(recipe, key))}
    data = [Step(
        "data/corpus", partial(stages.make_data, e), 
        [recipe.corpus, recipe.corpus_options, recipe.seed, recipe.lang, recipe.lexicon, recipe.units, recipe.pieces,
         *([optional] if optional else [])],
        [e.data(split) / "wav.scp" for split in ("train", "dev", "test")] + [e.lexicon],
        inputs=[path for path in (e.source, recipe.graphemes and Path(recipe.graphemes)) if path], owns=e.out / "data",
        keys=("corpus", "corpus_options", "seed", "lang", "lexicon", "units", "pieces",
              *([""] if optional else [])),  # `optional` has its own keys
    )]  # fmt: skip
    if recipe.speed_perturb:
        data.append(Step("data/speed", partial(stages.perturb_train, e), recipe.speed_perturb,
                         [e.data(e.train) / "wav.scp"], ["data/corpus"], owns=e.data(e.train),
                         keys=("speed_perturb",), bulky=True))  # fmt: skip
    spoken = data[-1].name
    if recipe.augment:
        given = [Path(path) for path in (recipe.augment.noise_dir, recipe.augment.rir_dir) if path]
        data.append(Step("data/augment", partial(stages.augment_train, e), [recipe.augment.model_dump(), recipe.seed],
                         [e.data(e.augmented) / "wav.scp"], [spoken], given, owns=e.data(e.augmented),
                         keys=("augment", "seed"), bulky=True))  # fmt: skip
    extracted = [
        Step(_extracted(name), partial(stages.extract_features, e, name), config.model_dump(),
             [e.features(name, split) / "feats.scp" for split in e.splits], [spoken],
             owns=e.features(name, "train").parent, keys=(name,), bulky=True)
        for name, config in e.presets.items()
    ]  # fmt: skip
    if recipe.augment:
        scps = [e.features(name, e.augmented) / "feats.scp" for name in e.network_features]
        originals = map(_extracted, e.network_features)
        extracted += [
            Step("features/augmented", partial(stages.extract_augmented, e), None, scps, ["data/augment", *originals])
        ]
    lfmmi = _lfmmi_steps(e) if recipe.lfmmi else {}
    selftrained = _self_steps(e) if SELF in e.trained else {}
    bmmi = [_bmmi_step(e)] if BMMI in e.trained else []
    training = [step for network in e.networks for step in _network_steps(e, network)]
    rescoring = ["graph/rescore"] if isinstance(recipe.lm.rescore, int) else []
    settings, keys = e.decoding
    decoding = [
        Step(f"decode/{system}", partial(evaluation.decode_system, e, system), settings,
             [e.out / "decode" / system / "test" / "hyp.txt"],
             [*([f"train/{system}"] if system in e.trained else []), f"graph/{e.hmm_of(system)}", *rescoring],
             [e.rescoring_lm] if isinstance(recipe.lm.rescore, str) else [], owns=e.out / "decode" / system, keys=keys)
        for system in e.systems if system != SELF
    ]  # fmt: skip
    earlier = {name: _ended(e.out, decode_step(name)) for name in e.earlier}
    score = Step(
        "score", partial(evaluation.score_systems, e), [earlier or None, list(e.systems)],
        [e.out / "score" / system / "score.json" for system in e.systems],
        [*(step.name for step in decoding), *([decode_step(SELF)] if selftrained else [])],
        keys=("earlier systems", "systems"),
    )  # fmt: skip
    scores = [score]
    if recipe.corpus in evaluation.BOUNDARIES:
        scores.append(Step("score/boundaries", partial(evaluation.score_boundaries, e), None,
                           [e.out / "score" / "aligner" / "boundaries.json"], ["hmm/boundaries"]))  # fmt: skip
    report = Step("report", partial(evaluation.report, e), None, [e.out / "report.html"], ["score", "hmm/boundaries"])
    data += selftrained.get("data", [])
    extracted += selftrained.get("features", [])
    return [
        *data, *extracted, *_hmm_steps(e), *lfmmi.get("hmm", ()), *_graph_steps(e), *bmmi, *training,
        *lfmmi.get("train", ()), *decoding, *selftrained.get("self", ()), *scores, report,
    ]  # fmt: skip


def chose_nothing(experiment: Experiment) -> bool:
    """Whether self-training is up to date and found nothing to learn from, so that its later steps never run."""
    from speech3.recipe.selftrain import found_nothing

    if SELF not in experiment.trained or not found_nothing(experiment):
        return False
    plan = make_plan(steps(experiment), experiment.out, None, None)
    chosen = next(place for place, each in enumerate(plan, 1) if each.step.name == CHOOSE)
    return not any(each.why for each in plan[:chosen])


def _extracted(preset: str) -> str:
    """The step that extracts these features."""
    return f"features/{Path(preset).stem}"


def _packed(e: Experiment, preset: str) -> list[str]:
    """The steps whose features are packed for a network: those of augmented copies, too."""
    return [*(["features/augmented"] if e.recipe.augment else []), _extracted(preset)]


def _augmenting(e: Experiment) -> list[str]:
    """The key of augmentation, if there is any: without it, frames of an earlier run with copies are packed anew."""
    return ["augment"] if e.recipe.augment else []


def _packing(e: Experiment, dtype: str) -> str | list[object]:
    """The settings of packed frames."""
    return [dtype, True] if e.recipe.augment else dtype


def _questions(e: Experiment) -> list[Path]:
    return [Path(e.recipe.hmm.extra_questions)] if e.recipe.hmm.extra_questions else []


def _ended(out: Path, name: str) -> str:
    return datetime.fromtimestamp((ended_ns(out, name) or 0) / 1e9).isoformat(" ", "milliseconds")


def _hmm_steps(e: Experiment) -> list[Step]:
    """The steps from words to an alignment, by GMMs or a network; and the aligner, whose alignments are inspected."""
    from speech3.recipe import flat, stages

    recipe, lfmmi = e.recipe, e.recipe.lfmmi
    hmm = recipe.hmm.model_dump(exclude={"features", "aligner_features", "flat_start", "bmmi"})
    hmm["tri"].pop("discriminative")  # it does not affect these GMMs
    shared = {key: value for key, value in hmm.items() if key not in ("mono", "tri", "aligner")} | {"seed": recipe.seed}
    hmm_features, aligner_features = _extracted(recipe.hmm.features), _extracted(recipe.hmm.aligner_features)
    if e.bootstrap == FLAT:
        assert lfmmi is not None
        check_frequencies(recipe.flat.model, e.presets[lfmmi.features], f"lfmmi.features={lfmmi.features}", "flat.")
        steps = [
            Step("hmm/flat.frames", partial(flat.prepare, e),
                 [shared, recipe.flat.longest_s, recipe.flat.training.dtype, lfmmi.longer_histories],
                 [e.model(FLAT_HMM) / "denominator.safetensors",
                  *(e.frames(FLAT) / f"{name}.frames" for name in ("train", "heldout"))],
                 [_extracted(lfmmi.features)], owns=e.frames(FLAT),
                 keys=("hmm", "flat.longest_s", "flat.training.dtype", "lfmmi.longer_histories")),
            Step("hmm/flat", partial(flat.train_network, e),
                 [recipe.flat.model.model_dump(), recipe.flat.training.model_dump(), recipe.seed],
                 [e.model(FLAT) / "model.safetensors"], ["hmm/flat.frames"], owns=e.model(FLAT),
                 keys=("flat.model", "flat.training", "seed"),
                 open_keys=[f"flat.training.{key}" for key in NOT_COMPUTED], elastic=_elastic("flat.")),
        ]  # fmt: skip
    else:
        steps = [
            Step("hmm/mono", partial(stages.train_mono, e, "mono"), [shared, hmm["mono"]],
                 [e.model("mono") / "model.safetensors"], [hmm_features], owns=e.model("mono"),
                 keys=("hmm", "hmm.mono")),
            Step("hmm/tri", partial(stages.train_tri, e), hmm["tri"],
                 [e.model("tri") / "model.safetensors"], ["hmm/mono"], _questions(e), owns=e.model("tri"),
                 keys=("hmm.tri",)),
        ]  # fmt: skip
    first = e.bootstrap
    return [
        *steps,
        Step("hmm/align", partial(stages.align_data, e, first, e.feature_preset(first), (e.train, "dev")), None,
             [e.alignment(first, split) / f"{name}.ark" for split in (e.train, "dev") for name in ("ali", "labels")],
             [f"hmm/{first}"]),
        Step("hmm/aligner", partial(stages.train_mono, e, "aligner"), [shared, hmm["aligner"]],
             [e.model("aligner") / "model.safetensors"], [aligner_features], owns=e.model("aligner"),
             keys=("hmm", "hmm.aligner")),
        Step("hmm/boundaries", partial(stages.align_data, e, "aligner", recipe.hmm.aligner_features, ("dev", "test")),
             None, [e.alignment("aligner", split) / "ali.ark" for split in ("dev", "test")], ["hmm/aligner"]),
    ]  # fmt: skip


def _bmmi_step(e: Experiment) -> Step:
    from speech3.recipe import bmmi

    return Step(f"train/{BMMI}", partial(bmmi.train_gmms, e), e.recipe.hmm.bmmi.model_dump(),
                [e.model(BMMI) / "model.safetensors"], ["hmm/align"], owns=e.model(BMMI),
                keys=("hmm.bmmi",))  # fmt: skip


def _check_convolutions(model: ModelConfig, features: FeatureConfig, prefix: str = "") -> None:
    """Refuse convolutions that do not fit the features, before these are extracted and aligned."""
    from speech3.models import build
    from speech3.recipe.expected import dim_of

    if features.kind != "given" and getattr(model, "convolutions", None) and getattr(model, "width", 1):
        try:
            build(model, dim_of(features), 1, seed=0)
        except Speech3Error as error:
            raise Speech3Error(f"{prefix}{error}") from error


def _check_outputs(model: ModelConfig) -> None:
    """Refuse a network that cannot learn the triphones' senones, before they are made."""
    for key, wrong in (("subsampling=3", model.subsampling == 3), ("two_outputs=true", model.two_outputs)):
        if wrong:
            raise Speech3Error(
                f"model.{key}: only for LF-MMI, whose network is lfmmi.model; model learns the triphones' senones, by"
                " cross-entropy, with one output for every frame: remove the key"
            )


def _network_steps(e: Experiment, network: str) -> list[Step]:
    from speech3.recipe import stages

    recipe, source = e.recipe, e.label_source(network)
    check_frequencies(recipe.model, e.presets[recipe.features], f"features={recipe.features}")
    _check_outputs(recipe.model)
    _check_convolutions(recipe.model, e.presets[recipe.features])
    realign = [] if source == "tri" else [
        Step(f"train/{network}.align", partial(stages.align_data, e, source, recipe.features, (e.train, "dev")), None,
             [e.alignment(source, split) / "ali.ark" for split in (e.train, "dev")], [f"train/{source}"])
    ]  # fmt: skip
    return [
        *realign,
        Step(f"train/{e.frames_name(network)}.frames", partial(stages.pack_frames, e, network),
             _packing(e, e.training.dtype), [e.frames(network) / f"{name}.frames" for name in ("train", "heldout")],
             [realign[0].name if realign else "hmm/align", *_packed(e, recipe.features)],
             owns=e.frames(network), keys=("training.dtype", *_augmenting(e)), bulky=True),
        Step(f"train/{network}", partial(stages.train_network, e, network),
             [recipe.model.model_dump(), _training_settings(e), recipe.seed],
             [e.model(network) / "model.safetensors"], [f"train/{e.frames_name(network)}.frames"], _started(e, network),
             owns=e.model(network), keys=("model", "training", "seed"),
             open_keys=[*open_sizes(recipe), *(f"training.{key}" for key in NOT_COMPUTED)], elastic=_elastic(""),
             beside=network == e.networks[-1] and _one_core_each(e)),
    ]  # fmt: skip


def _elastic(prefix: str) -> list[str]:
    """The keys of training that may change when a killed run is resumed."""
    return [f"{prefix}training.{key}" for key in (*NOT_COMPUTED, "workers")]


def _one_core_each(e: Experiment) -> bool:
    """Whether the network that learns senones and the LF-MMI network are each trained by one process on the CPU."""
    both = [e.training, *([e.recipe.lfmmi.training] if e.recipe.lfmmi else [])]
    return e.jobs > 1 and len(both) > 1 and all(each.workers == 1 and each.device == "cpu" for each in both)


def _started(e: Experiment, system: str) -> list[Path]:
    return [start.file] if (start := e.start(system)) else []


def _training_settings(e: Experiment) -> dict[str, object]:
    """The training config, without workers that the machine determines: on another machine nothing is trained again."""
    training = e.training.model_dump()
    return {**training, "workers": 0, "world": "sgd"} if e.workers_chosen else training


def _lfmmi_steps(e: Experiment) -> dict[str, list[Step]]:
    from speech3.recipe import lfmmi

    system = e.recipe.lfmmi
    assert system is not None
    check_frequencies(system.model, e.presets[system.features], f"lfmmi.features={system.features}", "lfmmi.")
    _check_convolutions(system.model, e.presets[system.features], "lfmmi.")
    hmm, frames = e.model(LFMMI_HMM), [e.frames(LFMMI) / f"{name}.frames" for name in ("train", "heldout")]
    not_computed = [f"lfmmi.training.{key}" for key in NOT_COMPUTED]
    if system.passes is not None:
        not_computed.append("lfmmi.training.max_epochs")  # passes replaces it
    flat = e.bootstrap == FLAT  # otherwise tri has needed these
    questions, tree_features = (_questions(e), [_extracted(e.recipe.hmm.features)]) if flat else ([], [])
    return {
        "hmm": [
            Step("hmm/lfmmi", partial(lfmmi.train_hmm, e), [system.leaves, system.longer_histories],
                 [hmm / "denominator.safetensors", hmm / "hmm.json"],
                 ["hmm/align", *tree_features], questions, owns=hmm,
                 keys=("lfmmi.leaves", "lfmmi.longer_histories")),
        ],
        "train": [
            Step(f"train/{LFMMI}.frames", partial(lfmmi.pack_frames, e, e.frames(LFMMI)),
                 _packing(e, system.training.dtype), frames, ["hmm/lfmmi", *_packed(e, system.features)],
                 owns=e.frames(LFMMI), keys=("lfmmi.training.dtype", *_augmenting(e)), bulky=True),
            Step(f"train/{LFMMI}", partial(lfmmi.train_network, e),
                 [system.model.model_dump(), system.training.model_dump(), system.passes, e.recipe.seed],
                 [e.model(LFMMI) / "model.safetensors"], [f"train/{LFMMI}.frames"],
                 _started(e, LFMMI), owns=e.model(LFMMI),
                 keys=("lfmmi.model", "lfmmi.training", "lfmmi.passes", "seed"),
                 open_keys=[*open_sizes(e.recipe), *not_computed], elastic=_elastic("lfmmi.")),
        ],
    }  # fmt: skip


def _self_steps(e: Experiment) -> dict[str, list[Step]]:
    from speech3.recipe import evaluation, selftrain

    given, system, out = e.recipe.untranscribed, e.recipe.lfmmi, e.out / "self"
    assert given is not None and system is not None
    return {
        "data": [
            Step(f"data/{UNTRANSCRIBED}", partial(selftrain.make_data, e), None, [e.data(UNTRANSCRIBED) / "wav.scp"],
                 ["data/corpus"], [Path(given.recordings)], owns=e.data(UNTRANSCRIBED)),
        ],
        "features": [
            Step(f"features/{UNTRANSCRIBED}", partial(selftrain.extract_features, e), None,
                 [e.features(system.features, UNTRANSCRIBED) / "feats.scp"],
                 [f"data/{UNTRANSCRIBED}", _extracted(system.features)]),
        ],
        "self": [
            Step("self/transcribe", partial(selftrain.transcribe, e), None, [out / "hyp.ctm"],
                 [f"decode/{LFMMI}", f"features/{UNTRANSCRIBED}"], owns=out),
            Step(CHOOSE, partial(selftrain.choose, e), given.confidence, [out / "labels.ark"],
                 ["self/transcribe"], keys=("untranscribed.confidence",)),
            Step("self/frames", partial(selftrain.pack_frames, e), None,
                 [e.frames(SELF) / f"{name}.frames" for name in ("train", "heldout")],
                 ["self/choose", f"train/{LFMMI}.frames"], owns=e.frames(SELF), bulky=True),
            Step("self/train", partial(selftrain.train_network, e), None, [e.model(SELF) / "model.safetensors"],
                 ["self/frames", f"train/{LFMMI}"], owns=e.model(SELF), elastic=_elastic("lfmmi.")),
            Step(decode_step(SELF), partial(evaluation.decode_system, e, SELF), None,
                 [e.out / "decode" / SELF / "test" / "hyp.txt"], ["self/train", f"decode/{LFMMI}"],
                 owns=e.out / "decode" / SELF),
        ],
    }  # fmt: skip


def _graph_steps(e: Experiment) -> list[Step]:
    from speech3.recipe import language

    lm = e.recipe.lm
    given = [Path(path) for path in (lm.text, lm.arpa) if path]
    arpa = [] if lm.grammar else [e.out / "lm" / "lm.arpa.gz"]
    # Without letters the fingerprint is the one that earlier versions recorded, so that no step runs again.
    letters = [e.recipe.letters] if e.recipe.letters else []
    settings = [lm.model_dump(exclude={"self_loop_scale", "rescore", "letters"}),
                "the lexicon's words; dev's sentences apart", *letters]  # fmt: skip
    keys = ("lm", "text", *(["lm.letters"] if letters else []))
    model = Step("graph/lm", partial(language.make_lm, e), settings, arpa, ["data/corpus"], given, keys=keys)
    second = Step("graph/rescore", partial(language.make_rescoring_lm, e), [*settings, lm.rescore], [e.rescoring_lm],
                  ["graph/lm"], given, keys=(*keys, "lm.rescore"))  # fmt: skip
    return [model, *([second] if isinstance(lm.rescore, int) else [])] + [
        Step(f"graph/{name}", partial(language.make_graphs, e, name), [lm.grammar, lm.self_loop_scale],
             [e.model(name) / "graph" / "HCLG.fst"], ["graph/lm", f"hmm/{after}"],
             keys=("lm.grammar", "lm.self_loop_scale"))
        for name, after in [*((gmm, gmm) for gmm in e.gmms), *([(LFMMI_HMM, LFMMI)] if e.recipe.lfmmi else [])]
    ]  # fmt: skip
