"""One experiment: its recipe, where its files lie, and its steps in order.

OUT/data/{train,dev,test}, lexicon.txt      Kaldi data directories; train_sp if the recipe perturbs the speed, train_aug
                                            (train_sp_aug) if it augments: the copies alone, for the networks alone
OUT/data/lm.arpa.gz                         if the corpus brings a language model along
OUT/features/PRESET/{train,dev,test}        feats.ark, feats.scp
OUT/lm/{lm,tuning,own}.arpa.gz              language models (`speech3.recipe.language`)
OUT/mono, OUT/tri, OUT/dnn, OUT/cnn, ...    model directories (`speech3.decoding.recognizer`); networks of several
                                            families, trained one after another, stand side by side
OUT/tri/align/{train,dev}                   alignments; also in OUT/dnn, if another network learns from it; in OUT/flat
                                            if hmm.flat_start is lfmmi
OUT/frames/tri/{train,heldout}.frames       packed frames, labelled by the system's alignment
OUT/decode/SYSTEM/{dev,test,test_own}       tuning.txt; hyp.txt, hyp.ctm; hyp.txt with our own language model
OUT/score/SYSTEM                            tables; score.json; own_lm.json
OUT/report.html
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from speech3.config import FeatureConfig, RecipeConfig, TrainingConfig, load_config, load_preset, shipped
from speech3.corpus import anyspeech, digits, fsdd, shuzi
from speech3.errors import Speech3Error
from speech3.io.parallel import available_jobs
from speech3.recipe.steps import Step, ended_ns, up_to_date

Prepare = Callable[..., None]
CORPORA: dict[str, Prepare] = {
    "any": anyspeech.prepare,
    "digits": digits.prepare,
    "fsdd": fsdd.prepare,
    "shuzi": shuzi.prepare,
}
NEEDS_SOURCE = frozenset({"any", "fsdd"})
GMMS = ("mono", "tri")  # systems of every recipe; monophones are decoded if asked for
LFMMI, LFMMI_HMM = "lfmmi", "lfmmi_hmm"  # the system that is trained by LF-MMI, and what its outputs mean
FLAT, FLAT_HMM = "flat", "flat_hmm"  # the same of the network of hmm.flat_start=lfmmi, which is not decoded
OWN_GRAPH = "graph_own"  # of a model directory: with our own language model where another one was given
HAS_REFERENCE = frozenset({"digits"})  # an alignment known from the synthesiser


@dataclass(frozen=True, eq=False)
class Experiment:
    """A recipe at work in a directory.

    Attributes
    ----------
    name
        The recipe's.
    source
        Where the corpus lies, for those that are not built in.
    command
        As the user gave it, for the report.
    """

    name: str
    recipe: RecipeConfig
    out: Path
    source: Path | None
    command: str

    @property
    def jobs(self) -> int:
        """Processes."""
        return self.recipe.jobs or available_jobs()

    @property
    def bootstrap(self) -> str:
        """The system that goes from words to the first alignment that others learn from."""
        return FLAT if self.recipe.hmm.flat_start == "lfmmi" else "tri"

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the systems that learn senones: the second was trained on the first one's alignment, and so on."""
        if self.bootstrap == FLAT:
            return ()
        first = self.recipe.model.system
        return (first, *(f"{first}_realigned{number}" for number in range(1, self.recipe.realign + 1)))

    @property
    def gmms(self) -> tuple[str, ...]:
        """The GMM systems that are decoded."""
        if self.bootstrap == FLAT:
            return ()
        return GMMS if self.recipe.decode_mono else GMMS[1:]

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems that this run decodes, in the order of the table."""
        return (*self.gmms, *self.trained)

    @property
    def trained(self) -> tuple[str, ...]:
        """All networks of this run."""
        return (*self.networks, LFMMI) if self.recipe.lfmmi else self.networks

    @property
    def earlier(self) -> tuple[str, ...]:
        """Networks of other kinds that earlier runs left here, oldest first, if nothing they are made of changed."""
        decoded = [path.name.split(".")[1] for path in (self.out / ".done").glob("decode.*.json")]
        found = [
            name for name in decoded
            if name not in (*GMMS, *self.trained) and up_to_date(self.out, f"decode/{name}")
            and (self.model(name) / "decode.json").exists()
        ]  # fmt: skip
        return tuple(sorted(found, key=lambda name: ended_ns(self.out, f"decode/{name}") or 0))

    @property
    def shown(self) -> tuple[str, ...]:
        """The systems of the report: `systems` and `earlier`."""
        return (*self.gmms, *self.earlier, *self.trained)

    def teacher(self, network: str) -> str:
        """The system whose alignment a network learns."""
        return ("tri", *self.networks)[self.networks.index(network)]

    @property
    def training(self) -> TrainingConfig:
        """How networks are trained: the recipe's way, without warped or masked frequencies where features have none."""
        if self.presets[self.recipe.features].kind in ("fbank", "given"):
            return self.recipe.training
        return self.recipe.training.model_copy(update={"frequency_warp": 0.0, "frequency_masks": 0})

    @property
    def lexicon(self) -> Path:
        """The pronunciation dictionary."""
        return self.out / "data" / "lexicon.txt"

    @property
    def train(self) -> str:
        """The split that is trained on: with its copies at other speeds, if the recipe wants some."""
        return "train_sp" if self.recipe.speed_perturb else "train"

    @property
    def augmented(self) -> str:
        """The split of augmented copies of `train`."""
        return f"{self.train}_aug"

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that get features."""
        return (self.train, "dev", "test")

    def data(self, split: str) -> Path:
        """A data directory."""
        return self.out / "data" / split

    def features(self, preset: str, split: str) -> Path:
        """A directory of features."""
        return self.out / "features" / Path(preset).stem / split

    def model(self, system: str) -> Path:
        """A model directory."""
        return self.out / system

    def own_graph(self, system: str) -> Path:
        """The graph of a system with our own language model; it is there only where another model was given."""
        source = LFMMI_HMM if system == LFMMI else "tri" if system in self.networks else system
        return self.model(source) / OWN_GRAPH

    def alignment(self, system: str, split: str) -> Path:
        """A directory of alignments: by `tri` or a network (for training) or by `aligner` (for looking at)."""
        return self.out / system / "align" / split

    def frames(self, network: str) -> Path:
        """The packed frames that a network is trained on."""
        return self.out / "frames" / (network if network in (LFMMI, FLAT) else self.teacher(network))

    def feature_preset(self, system: str) -> str:
        """The features that a system reads."""
        if system in (LFMMI, FLAT) and self.recipe.lfmmi:
            return self.recipe.lfmmi.features
        return self.recipe.features if system in self.networks else self.recipe.hmm.features

    @cached_property
    def presets(self) -> dict[str, FeatureConfig]:
        """The feature configs of this experiment."""
        hmm = self.recipe.hmm
        lfmmi = [self.recipe.lfmmi.features] if self.recipe.lfmmi else []
        senones = [self.recipe.features] if self.networks else []
        names = dict.fromkeys((hmm.features, hmm.aligner_features, *senones, *lfmmi))
        return {name: load_preset(FeatureConfig, "features", name) for name in names}


def recipes() -> dict[str, str]:
    """The recipes that come with speech3: name, and the first line of its file, which says what it is."""
    paths = sorted(shipped("recipes").glob("*/recipe.yaml"))
    return {path.parent.name: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for path in paths}


def open_experiment(name: str, out: Path | None, source: Path | None, overrides: list[str], command: str) -> Experiment:
    """Read a recipe.

    Raises
    ------
    Speech3Error
        Nobody knows the recipe, a key is wrong, or the source is missing.
    """
    path = shipped("recipes") / name / "recipe.yaml"
    if not path.exists():
        raise Speech3Error(f"{name}: no such recipe; there are: {', '.join(recipes())}")
    recipe = load_config(RecipeConfig, path, overrides)
    if recipe.corpus not in CORPORA:
        raise Speech3Error(f"{path}: corpus: {recipe.corpus!r} is unknown; known: {', '.join(CORPORA)}")
    if recipe.corpus in NEEDS_SOURCE and source is None:
        raise Speech3Error(f"{name}: say where the corpus lies: recipes/run.sh {name} --source DIR")
    if source is not None and recipe.corpus not in NEEDS_SOURCE:
        raise Speech3Error(f"{name}: makes its own corpus and takes no --source")
    experiment = Experiment(name, recipe, (out or Path("exp") / name).resolve(), source and source.resolve(), command)
    if recipe.augment and experiment.presets[recipe.features].kind == "given":
        raise Speech3Error(
            f"features={recipe.features}: augmentation changes audio, and given features are not computed from it:"
            " leave augment out"
        )
    return experiment


def steps(experiment: Experiment) -> list[Step]:
    """All steps of an experiment, in order."""
    from speech3.recipe import evaluation, stages

    e, recipe = experiment, experiment.recipe
    data = [Step(
        "data/corpus", partial(stages.make_data, e), 
        [recipe.corpus, recipe.corpus_options, recipe.seed, recipe.lang, recipe.lexicon, recipe.units, recipe.pieces],
        [e.data(split) / "wav.scp" for split in ("train", "dev", "test")] + [e.lexicon],
        inputs=[e.source] if e.source else [], owns=e.out / "data",
    )]  # fmt: skip
    if recipe.speed_perturb:
        data.append(Step("data/speed", partial(stages.perturb_train, e), recipe.speed_perturb,
                         [e.data(e.train) / "wav.scp"], ["data/corpus"], owns=e.data(e.train)))  # fmt: skip
    spoken = data[-1].name
    if recipe.augment:
        given = [Path(path) for path in (recipe.augment.noise_dir, recipe.augment.rir_dir) if path]
        data.append(Step("data/augment", partial(stages.augment_train, e), [recipe.augment.model_dump(), recipe.seed],
                         [e.data(e.augmented) / "wav.scp"], [spoken], given, owns=e.data(e.augmented)))  # fmt: skip
    extracted = [
        Step(f"features/{Path(name).stem}", partial(stages.extract_features, e, name), config.model_dump(),
             [e.features(name, split) / "feats.scp" for split in e.splits], [spoken],
             owns=e.features(name, "train").parent)
        for name, config in e.presets.items()
    ]  # fmt: skip
    nn_features = f"features/{Path(recipe.features).stem}"
    if recipe.augment:
        scp = e.features(recipe.features, e.augmented) / "feats.scp"
        extracted += [
            Step("features/augmented", partial(stages.extract_augmented, e), None, [scp], ["data/augment", nn_features])
        ]
    lfmmi = _lfmmi_steps(e) if recipe.lfmmi else {}
    training = [step for network in e.networks for step in _network_steps(e, network, nn_features)]
    decoding = [
        Step(f"decode/{system}", partial(evaluation.decode_system, e, system),
             recipe.decode.model_copy(update={"metric": recipe.metric}).model_dump(),
             [e.out / "decode" / system / "test" / "hyp.txt"],
             [f"train/{system}" if system in e.trained else f"graph/{system}"], owns=e.out / "decode" / system)
        for system in e.systems
    ]  # fmt: skip
    earlier = {name: ended_ns(e.out, f"decode/{name}") for name in e.earlier}
    score = Step(
        "score", partial(evaluation.score_systems, e), earlier or None,
        [e.out / "score" / system / "score.json" for system in e.systems], [step.name for step in decoding],
    )  # fmt: skip
    scores = [score]
    if recipe.corpus in HAS_REFERENCE:
        scores.append(Step("score/borders", partial(evaluation.score_borders, e), None,
                           [e.out / "score" / "aligner" / "borders.json"], ["hmm/borders"]))  # fmt: skip
    report = Step("report", partial(evaluation.report, e), None, [e.out / "report.html"], ["score", "hmm/borders"])
    return [
        *data, *extracted, *_hmm_steps(e), *lfmmi.get("hmm", ()), *_graph_steps(e), *training, *lfmmi.get("train", ()),
        *decoding, *scores, report,
    ]  # fmt: skip


def _hmm_steps(e: Experiment) -> list[Step]:
    """From words to an alignment, by GMMs or by a network; and the aligner, for looking at."""
    from speech3.recipe import flat, stages

    recipe, lfmmi = e.recipe, e.recipe.lfmmi
    hmm = recipe.hmm.model_dump(exclude={"features", "aligner_features", "flat_start"})
    questions = [Path(recipe.hmm.extra_questions)] if recipe.hmm.extra_questions else []
    shared = {key: value for key, value in hmm.items() if key not in ("mono", "tri", "aligner")} | {"seed": recipe.seed}
    hmm_features, aligner_features = (
        f"features/{Path(name).stem}" for name in (recipe.hmm.features, recipe.hmm.aligner_features)
    )
    if e.bootstrap == FLAT:
        assert lfmmi is not None
        steps = [
            Step("hmm/flat.frames", partial(flat.prepare, e),
                 [shared, recipe.flat.longest_s, recipe.flat.training.dtype, lfmmi.longer_histories],
                 [e.model(FLAT_HMM) / "denominator.safetensors",
                  *(e.frames(FLAT) / f"{name}.frames" for name in ("train", "heldout"))],
                 [f"features/{Path(lfmmi.features).stem}"], owns=e.frames(FLAT)),
            Step("hmm/flat", partial(flat.train_network, e),
                 [recipe.flat.model.model_dump(), recipe.flat.training.model_dump(), recipe.seed],
                 [e.model(FLAT) / "model.safetensors"], ["hmm/flat.frames"], owns=e.model(FLAT)),
        ]  # fmt: skip
    else:
        steps = [
            Step("hmm/mono", partial(stages.train_mono, e, "mono"), [shared, hmm["mono"]],
                 [e.model("mono") / "model.safetensors"], [hmm_features], owns=e.model("mono")),
            Step("hmm/tri", partial(stages.train_tri, e), hmm["tri"],
                 [e.model("tri") / "model.safetensors"], ["hmm/mono"], questions, owns=e.model("tri")),
        ]  # fmt: skip
    first = e.bootstrap
    return [
        *steps,
        Step("hmm/align", partial(stages.align_data, e, first, e.feature_preset(first), (e.train, "dev")), None,
             [e.alignment(first, split) / f"{name}.ark" for split in (e.train, "dev") for name in ("ali", "labels")],
             [f"hmm/{first}"]),
        Step("hmm/aligner", partial(stages.train_mono, e, "aligner"), [shared, hmm["aligner"]],
             [e.model("aligner") / "model.safetensors"], [aligner_features], owns=e.model("aligner")),
        Step("hmm/borders", partial(stages.align_data, e, "aligner", recipe.hmm.aligner_features, ("dev", "test")),
             None, [e.alignment("aligner", split) / "ali.ark" for split in ("dev", "test")], ["hmm/aligner"]),
    ]  # fmt: skip


def _network_steps(e: Experiment, network: str, nn_features: str) -> list[Step]:
    from speech3.recipe import stages

    recipe, teacher = e.recipe, e.teacher(network)
    realign = [] if teacher == "tri" else [
        Step(f"train/{network}.align", partial(stages.align_data, e, teacher, recipe.features, (e.train, "dev")), None,
             [e.alignment(teacher, split) / "ali.ark" for split in (e.train, "dev")], [f"train/{teacher}"])
    ]  # fmt: skip
    return [
        *realign,
        Step(f"train/{teacher}.frames", partial(stages.pack_frames, e, network), e.training.dtype,
             [e.frames(network) / f"{name}.frames" for name in ("train", "heldout")],
             [realign[0].name if realign else "hmm/align", "features/augmented" if recipe.augment else nn_features],
             owns=e.frames(network)),
        Step(f"train/{network}", partial(stages.train_network, e, network),
             [recipe.model.model_dump(), e.training.model_dump(), recipe.seed],
             [e.model(network) / "model.safetensors"], [f"train/{teacher}.frames", "graph/tri"],
             owns=e.model(network)),
    ]  # fmt: skip


def _lfmmi_steps(e: Experiment) -> dict[str, list[Step]]:
    from speech3.recipe import lfmmi

    system = e.recipe.lfmmi
    assert system is not None
    hmm, frames = e.model(LFMMI_HMM), [e.frames(LFMMI) / f"{name}.frames" for name in ("train", "heldout")]
    tree_features = [f"features/{Path(e.recipe.hmm.features).stem}"] if e.bootstrap == FLAT else []  # tri needs them
    return {
        "hmm": [
            Step("hmm/lfmmi", partial(lfmmi.train_hmm, e), [system.leaves, system.longer_histories],
                 [hmm / "denominator.safetensors", hmm / "hmm.json"],
                 ["hmm/align", *tree_features], owns=hmm),
        ],
        "train": [
            Step(f"train/{LFMMI}.frames", partial(lfmmi.pack_frames, e), system.training.dtype, frames,
                 ["hmm/lfmmi", f"features/{Path(system.features).stem}"], owns=e.frames(LFMMI)),
            Step(f"train/{LFMMI}", partial(lfmmi.train_network, e),
                 [system.model.model_dump(), system.training.model_dump(), e.recipe.seed],
                 [e.model(LFMMI) / "model.safetensors"], [f"train/{LFMMI}.frames", f"graph/{LFMMI_HMM}"],
                 owns=e.model(LFMMI)),
        ],
    }  # fmt: skip


def _graph_steps(e: Experiment) -> list[Step]:
    from speech3.recipe import language

    lm = e.recipe.lm
    given = [Path(path) for path in (lm.text, lm.arpa) if path]
    arpa = [] if lm.grammar else [e.out / "lm" / "lm.arpa.gz"]
    settings = [lm.model_dump(exclude={"self_loop_scale"}), "the lexicon's words; dev's sentences apart"]
    model = Step("graph/lm", partial(language.make_lm, e), settings, arpa, ["data/corpus"], given)
    return [model] + [
        Step(f"graph/{name}", partial(language.make_graphs, e, name), [lm.grammar, lm.self_loop_scale],
             [e.model(name) / "graph" / "HCLG.fst"], ["graph/lm", f"hmm/{after}"])
        for name, after in [*((gmm, gmm) for gmm in e.gmms), *([(LFMMI_HMM, LFMMI)] if e.recipe.lfmmi else [])]
    ]  # fmt: skip
