"""One experiment: its recipe, and the layout of its files.

OUT/data/{train,dev,test}, lexicon.txt      Kaldi data directories; train_sp: with copies at other speeds; train_aug
                                            (train_sp_aug): only augmented copies, for networks alone; train_neg: with
                                            negatives, and dev_neg: negatives alone (`speech3.recipe.negatives`)
OUT/data/lm.arpa.gz                         if the corpus includes a language model
OUT/data/untranscribed, OUT/self            with untranscribed=DIR (`speech3.recipe.selftrain`)
OUT/features/PRESET/{train,dev,test}        feats.ark, feats.scp
OUT/lm/{lm,tuning,own}.arpa.gz              language models (`speech3.recipe.language`)
OUT/pretrained/SYSTEM                       with pretrain=DIR: what the networks start from (`speech3.train.unlabelled`)
OUT/mono, OUT/tri, OUT/dnn, OUT/cnn, ...    model directories (`speech3.decode.trained_model`); networks of several
                                            families that were trained one after another are kept side by side
OUT/tri/align/{train,dev}                   alignments; also in OUT/dnn, if another network learns from it; in OUT/flat
                                            instead, if hmm.flat_start is lfmmi
OUT/frames/tri/{train,heldout}.frames       packed frames, labelled by the system's alignment
OUT/decode/SYSTEM/{dev,test,test_own}       tuning.txt; hyp.txt, hyp.ctm; hyp.txt with our own language model
OUT/decode/SYSTEM/{dev,test}_rescored       with lm.rescore: hyp.txt, rescore.json, with n-grams lattices; those before
                                            are in {dev,test}_lattices
OUT/score/SYSTEM                            tables; score.json; own_lm.json; rescored.json
OUT/report.html
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from speech3.config import (
    CnnTdnnConfig,
    FeatureConfig,
    ModelConfig,
    NeuralLmConfig,
    RecipeConfig,
    TrainingConfig,
    load_config,
    load_preset,
    parse,
    presets,
    read_yaml,
    recipes,
    refuse_unused,
    shipped,
)
from speech3.corpora import (
    aishell,
    an4,
    anyspeech,
    commonvoice,
    digits,
    fsdd,
    librispeech,
    shuzi,
    tedlium,
    timit,
    wsj,
    yesno,
)
from speech3.data import lengths_s, read_datadir, without_background
from speech3.decode import SideBySide
from speech3.errors import DataError, MismatchError, MissingError, OccupiedError, SettingError
from speech3.io import DECODE_FILE, ArkReader
from speech3.recipe.sizes import described, open_sizes, size_keys, with_sizes, workers_keys
from speech3.recipe.starts import LFMMI, Start, find_starts, with_architectures
from speech3.recipe.steps import check_places, ended_ns, recorded_inputs, recorded_settings, settings_of, up_to_date
from speech3.runtime import available_jobs, say

CORPORA: dict[str, Callable[..., None]] = {
    "aishell": aishell.prepare,
    "an4": an4.prepare,
    "any": anyspeech.prepare,
    "commonvoice": commonvoice.prepare,
    "digits": digits.prepare,
    "fsdd": fsdd.prepare,
    "librispeech": librispeech.prepare,
    "shuzi": shuzi.prepare,
    "tedlium": tedlium.prepare,
    "timit": timit.prepare,
    "wsj": wsj.prepare,
    "yesno": yesno.prepare,
}
MAKES_ITS_OWN = frozenset({"digits", "shuzi"})  # corpora that are synthesised
LDA, SAT = "lda", "sat"  # GMMs on transformed features (hmm.lda, hmm.sat)
SAT_WORDS = "sat_words"  # SAT's features of dev and test, adapted to what `LFMMI` recognised in them
ADAPTED_STAGE = "adapted"  # the stage of what comes after decoding with sat
SAT_LFMMI = "sat_lfmmi"  # the LF-MMI network on mel bins and SAT's adapted features
LFMMI_MEAN = "lfmmi_mean"  # the mean of the scores of `LFMMI` and `SAT_LFMMI`
LFMMI_TAUGHT = "lfmmi_taught"  # a network like `SAT_LFMMI` that learns from `LFMMI_MEAN`
LFMMI_ADAPTED = (SAT_LFMMI, LFMMI_MEAN, LFMMI_TAUGHT)
GMMS = ("mono", "tri", LDA, SAT)  # systems of every recipe; monophones are decoded only if decode_mono is set
BMMI = "bmmi"  # the triphones' GMMs trained further, with hmm.tri.discriminative=bmmi
LFMMI_HMM = "lfmmi_hmm"  # the HMM of the outputs of the system `LFMMI`
SELF = "lfmmi_self"  # an LF-MMI system trained also on what the first one recognises in `untranscribed`
UNTRANSCRIBED = "untranscribed"  # the data directory of recordings without transcripts
NEGATIVES = "dev_neg"  # sounds without words, beside dev
FLAT, FLAT_HMM = "flat", "flat_hmm"  # the network of hmm.flat_start=lfmmi, which is not decoded, and its HMM
_LEAST_WITH_START = 1.0  # minutes; recipes/any/README.md has a result with four
# What a lower limit of speech keeps from being trained.
_LIMITED = {
    "min_minutes": "network",
    "lfmmi.min_minutes": "LF-MMI system",
    "hmm.lda.min_minutes": "systems lda and sat",
}
OWN_GRAPH = "graph_own"  # in a model directory: the graph with our own language model, if another one was given


def without_mel_bins(training: TrainingConfig) -> TrainingConfig:
    """The training config, without frequency warps, masks and speeds."""
    return training.model_copy(update={"frequency_warp": 0.0, "frequency_masks": 0, "speeds": ()})


def on_sat(system: str) -> bool:
    """Whether a system's network reads SAT's adapted features, alone or with others."""
    return system.startswith(f"{SAT}_") or system in LFMMI_ADAPTED


def train_step(system: str) -> str:
    if system in GMMS:
        return f"hmm/{system}"
    return "self/train" if system == SELF else f"{ADAPTED_STAGE if on_sat(system) else 'train'}/{system}"


def decode_step(system: str) -> str:
    if on_sat(system):
        return f"{ADAPTED_STAGE}/{system}.decode"
    return "self/decode" if system == SELF else f"decode/{system}"


def rescore_step(system: str) -> str:
    return f"rescore/{system}"


@dataclass(frozen=True, eq=False)
class Experiment:
    """A recipe and the directory in which it runs.

    Attributes
    ----------
    source
        Directory of the corpus, if it is not built in.
    command
        The user's command line, for the report.
    starts
        The trained networks of `init` from which networks of the recipe start, by the names of their systems.
    enough
        Whether there is enough speech to train networks.
    workers_chosen
        Keys of the workers of networks that follow the amount of speech and the machine.
    """

    name: str
    recipe: RecipeConfig
    out: Path
    source: Path | None
    command: str
    starts: Mapping[str, Start] = field(default_factory=dict)
    enough: bool = True
    workers_chosen: tuple[str, ...] = ()

    @property
    def compared_with_published_results(self) -> bool:
        """Whether the recipe is for a public corpus, for which its page has a table of published results."""
        return self.source is not None and self.recipe.corpus != "any"

    @property
    def jobs(self) -> int:
        return self.recipe.jobs or available_jobs()

    @property
    def bootstrap(self) -> str:
        """The system that makes the first alignment, from which others learn."""
        return FLAT if self.recipe.hmm.flat_start == "lfmmi" else "tri"

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the networks that learn senones: the second from the alignment of the first, and so on."""
        if self.bootstrap == FLAT or not self.enough:
            return ()
        first = self.recipe.model.system
        return (first, *(f"{first}_realigned{number}" for number in range(1, self.recipe.realign + 1)))

    @property
    def adapted(self) -> tuple[str, ...]:
        """The networks on SAT's adapted features: `sat_network`, and the one trained with LF-MMI.

        The first is trained by cross-entropy only, since MMI and sMBR continue a network, and there is none. Given
        features are not put beside adapted ones: the model could not compute both from recordings.
        """
        if SAT not in self.gmms:
            return ()
        given = self.reads_bins and self.presets[self.recipe.features].kind == "given"
        senones = self.networks and not (given or self.recipe.training.of_sequences)
        lfmmi = self.recipe.lfmmi and self.recipe.lfmmi.adapted
        return (*((self.sat_network,) if senones else ()), *((SAT_LFMMI,) if lfmmi else ()))

    @property
    def adapts_to_lfmmi(self) -> bool:
        """Whether networks are decoded with transforms from the words of `LFMMI`, which are better than SAT's own."""
        return bool(self.adapted and self.recipe.lfmmi)

    @property
    def sat_network(self) -> str:
        """The network on SAT's adapted features that learns senones; it is of the family of `networks`."""
        return f"{SAT}_{self.recipe.model.system}"

    @property
    def reads_bins(self) -> bool:
        """Whether `sat_network` has convolutions, and so reads what `networks` read and the adapted features beside."""
        return bool(getattr(self.recipe.model, "convolutions", ()))

    def sat_model(self, dim: int) -> ModelConfig:
        """The architecture of `sat_network` for `dim` adapted values; an error if its convolutions are too short."""
        if not self.reads_bins:
            return self.recipe.model
        values = {**self.recipe.model.model_dump(), "adapted": dim}
        return parse(ModelConfig, values, f"model of {self.sat_network} (without it: hmm.sat=null)")

    @property
    def sat_training(self) -> TrainingConfig:
        return self.training if self.reads_bins else without_mel_bins(self.recipe.training)

    @property
    def gmms(self) -> tuple[str, ...]:
        if self.bootstrap == FLAT:
            return ()
        hmm = self.recipe.hmm
        transformed = [name for name, config in ((LDA, hmm.lda), (SAT, hmm.lda and hmm.sat)) if config]
        return (*(("mono",) if self.recipe.decode_mono or not self.enough else ()), "tri", *transformed)

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems that this run decodes, in the order of the table."""
        return (*self.gmms, *self.trained)

    @property
    def trained(self) -> tuple[str, ...]:
        """All systems of this run but `gmms`: GMMs trained by boosted MMI, networks, the mean of two networks."""
        gmms, lfmmi = self.recipe.hmm.tri.discriminative, self.recipe.lfmmi
        taught = [LFMMI_TAUGHT] if lfmmi and lfmmi.taught else []
        mean = [LFMMI_MEAN, *taught] if SAT_LFMMI in self.adapted else []
        of_lfmmi = [LFMMI, *mean, *([SELF] if self.recipe.untranscribed else [])] if lfmmi else []
        return (*([BMMI] if gmms else []), *self.networks, *self.adapted, *of_lfmmi)

    @property
    def earlier(self) -> tuple[str, ...]:
        """Systems of other kinds that earlier runs left here, oldest first, if they are up to date and comparable."""
        records = [path for kind in ("decode.*", "*.decode") for path in (self.out / ".done").glob(f"{kind}.json")]
        decoded = [path.name.split(".")[1] for path in records]
        others = [name for name in (*decoded, SELF) if name not in (*GMMS, *self.trained)]
        found = [name for name in others if up_to_date(self.out, decode_step(name)) and self._decoded_alike(name)]
        return tuple(sorted(found, key=lambda name: ended_ns(self.out, decode_step(name)) or 0))

    def _decoded_alike(self, system: str) -> bool:
        """Whether an earlier system was tuned and decoded with the settings of this run."""
        if not (self.model(system) / DECODE_FILE).exists():
            return False
        step = decode_step(LFMMI if system == SELF else system)
        return recorded_settings(self.out, step) == settings_of(self.decoding)

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings that decoding depends on, by their keys."""
        return {"decode": self.recipe.decode.model_copy(update={"metric": self.recipe.metric}).model_dump()}

    def rescored(self, system: str) -> bool:
        """Whether there are results of rescoring with the language model that this run has.

        Of a model that was not made here, only this run's own systems are known to have been rescored with it.
        """
        if self.recipe.lm.rescore is None or system in self.systems:
            return self.recipe.lm.rescore is not None
        step = rescore_step(system)
        alike = up_to_date(self.out, step) and recorded_settings(self.out, step) == settings_of(self.rescoring)
        return self.makes_rescoring_lm and alike

    @property
    def rescoring(self) -> dict[str, Any]:
        """The settings that rescoring depends on."""
        return {"lm.rescore": self.recipe.lm.rescore}

    @property
    def shown(self) -> tuple[str, ...]:
        return (*self.gmms, *self.earlier, *self.trained)

    def label_source(self, network: str) -> str:
        """The system from whose alignment a network learns."""
        return SAT if network == self.sat_network else ("tri", *self.networks)[self.networks.index(network)]

    def hmm_of(self, system: str) -> str:
        """The directory in `out` with the HMM and the decoding graphs of a system."""
        if system not in self.trained:
            return system
        return LFMMI_HMM if system in (LFMMI, SELF, *LFMMI_ADAPTED) else SAT if system == self.sat_network else "tri"

    def start(self, system: str) -> Start | None:
        """The trained network that a system's network starts from, if any."""
        return self.starts.get(LFMMI if system in (LFMMI, SELF) else self.recipe.model.system)

    def pretrained(self, system: str) -> Path | None:
        """The run that pretrains what a system's network starts from, if `pretrain` is for its family."""
        lfmmi, given = self.recipe.lfmmi, self.recipe.pretrain
        by_lfmmi = lfmmi is not None and system in (LFMMI, SELF)
        family = lfmmi.model.family if lfmmi and by_lfmmi else self.recipe.model.family
        if given is None or (given.pretraining.task == "autoencoder" and family not in ("dnn", "cnn")):
            return None
        return self.out / "pretrained" / (LFMMI if by_lfmmi else self.recipe.model.system)

    def init(self, system: str) -> str | None:
        """The model that a system's network starts from, if any."""
        start = self.start(system)
        path = start.directory if start else self.pretrained(system)
        return str(path) if path else None

    @property
    def training(self) -> TrainingConfig:
        return self.fitting(self.recipe.training, self.recipe.features)

    def fitting(self, training: TrainingConfig, preset: str) -> TrainingConfig:
        """The training config, without frequency warps, masks and speeds if the features are not mel bins."""
        return training if self.presets[preset].kind == "fbank" else without_mel_bins(training)

    @property
    def lexicon(self) -> Path:
        return self.out / "data" / "lexicon.txt"

    @property
    def speech(self) -> str:
        """The training split, including copies at other speeds if the recipe has any, without negatives."""
        return "train_sp" if self.recipe.speed_perturb else "train"

    @property
    def train(self) -> str:
        """The training split with everything that GMMs learn from: `speech`, and negatives if the recipe has any."""
        return f"{self.speech}_neg" if self.recipe.negatives else self.speech

    @cached_property
    def about_data(self) -> dict[str, Any]:
        """What packed frames say of the training data."""
        train = read_datadir(self.data("train"))
        about: dict[str, Any] = {"corpus": self.name, "speed_perturb": list(self.recipe.speed_perturb)}
        return about if without_background(train) is train else {**about, "background": True}

    @property
    def augmented(self) -> str:
        return f"{self.train}_aug"

    @property
    def network_features(self) -> list[str]:
        system = self.recipe.lfmmi
        return list(dict.fromkeys([self.recipe.features, *([system.features] if system else [])]))

    @property
    def min_minutes(self) -> dict[str, float]:
        """The minimum minutes of training speech for some systems, by key; without those that are 0.

        An LF-MMI network that starts from a trained one needs less than one from scratch.
        """
        if self.bootstrap == FLAT:
            return {}
        lfmmi = self.recipe.lfmmi.min_minutes if self.recipe.lfmmi else 0.0
        if LFMMI in self.starts:
            lfmmi = min(lfmmi, _LEAST_WITH_START)
        lda = self.recipe.hmm.lda
        found = {"hmm.lda.min_minutes": lda.min_minutes if lda else 0.0}
        found |= {"min_minutes": self.recipe.min_minutes, "lfmmi.min_minutes": lfmmi}
        return {key: minutes for key, minutes in found.items() if minutes}

    @property
    def follows_speech(self) -> bool:
        """Whether the steps after the stage `data` depend on the amount of speech."""
        return bool(self.min_minutes or open_sizes(self.recipe))

    def sized(self, hours: float) -> "Experiment":
        """The experiment with the sizes that its recipe leaves open."""
        if not open_sizes(self.recipe):
            return self
        recipe = with_sizes(self.recipe, hours, min(self.jobs, available_jobs()))
        return replace(self, recipe=recipe, workers_chosen=tuple(workers_keys(self.recipe)))

    def settled(self) -> "Experiment":
        """The experiment with all sizes, and without the systems for which there is too little speech.

        It needs the finished stage `data`.
        """
        e, minutes = self.sized(self.hours), self.hours * 60
        if size_keys(self.recipe):
            say(f"sizes for {self.hours:.3g} h of speech: {described(e.recipe)}")
        little = {key: least for key, least in self.min_minutes.items() if minutes < least}
        for key, least in little.items():
            what = _LIMITED[key]
            say(f"no {what}: there are {minutes:.1f} min of speech to train on, and {key} is {least:g}")
        if "hmm.lda.min_minutes" in little:
            little.pop("hmm.lda.min_minutes")
            hmm = e.recipe.hmm.model_copy(update={"lda": None, "sat": None})
            e = replace(e, recipe=e.recipe.model_copy(update={"hmm": hmm}))
        if not little:
            return e
        dropped = ("lfmmi", "untranscribed", *(("augment",) if "min_minutes" in little else ()))
        found = replace(e, recipe=e.recipe.model_copy(update=dict.fromkeys(dropped)), enough="augment" not in dropped)
        unused = [f"untranscribed={e.recipe.untranscribed.recordings}"] if e.recipe.untranscribed else []
        unused += [f"pretrain={e.recipe.pretrain.recordings}"] if e.recipe.pretrain and not found.trained else []
        unused += [f"init={e.recipe.init}"] if e.recipe.init and not any(map(found.start, found.networks)) else []
        if unused:
            say(f"  so {' and '.join(unused)} cannot be used; to use it, lower {', '.join(little)}")
        return found

    def without_selftraining(self) -> "Experiment":
        return replace(self, recipe=self.recipe.model_copy(update={"untranscribed": None}))

    @cached_property
    def hours(self) -> float:
        """Hours of speech for training, copies at other speeds included; those with background are mostly that."""
        return sum(lengths_s(without_background(read_datadir(self.data(self.speech)))).values()) / 3600

    @property
    def splits(self) -> tuple[str, ...]:
        return (self.train, "dev", "test")

    @property
    def extracted(self) -> tuple[str, ...]:
        """The splits whose features are extracted: with the negatives on which costs and confidences are tuned."""
        return (*self.splits, *([NEGATIVES] if self.recipe.negatives else []))

    def data(self, split: str) -> Path:
        return self.out / "data" / split

    def features(self, preset: str, split: str) -> Path:
        return self.out / "features" / Path(preset).stem / split

    def model(self, system: str) -> Path:
        return self.out / system

    def own_graph(self, system: str) -> Path:
        """The graph of a system with our own language model; it exists only if another model was given."""
        return self.model(self.hmm_of(system)) / OWN_GRAPH

    @property
    def rescoring_lm(self) -> Path:
        """The language model with which lattices are rescored, if the recipe sets `lm.rescore`."""
        rescore = self.recipe.lm.rescore
        if self.rescoring_config:
            return self.out / "lm" / "rescore"
        return Path(rescore) if isinstance(rescore, str) else self.out / "lm" / "rescore.arpa.gz"

    @property
    def makes_rescoring_lm(self) -> bool:
        """Whether that model is made here, and not given."""
        return isinstance(self.recipe.lm.rescore, int) or self.rescoring_config is not None

    @cached_property
    def rescoring_config(self) -> NeuralLmConfig | None:
        """How to train that model; None if it is not to be a neural one, or exists.

        Its seed and device are the recipe's, unless a file has its own.
        """
        rescore = self.recipe.lm.rescore
        if not (isinstance(rescore, str) and (rescore in presets("lm") or rescore.endswith((".yaml", ".yml")))):
            return None
        chosen = load_preset(NeuralLmConfig, "lm", rescore)
        own = {"seed": self.recipe.seed, "device": self.recipe.training.device}
        return chosen.model_copy(update={key: own[key] for key in own.keys() - chosen.model_fields_set})

    def alignment(self, system: str, split: str) -> Path:
        """A directory of alignments by `tri` or a network (for training), or by `aligner` (for inspection)."""
        return self.out / system / "align" / split

    def frames(self, network: str) -> Path:
        own = (LFMMI, SELF, FLAT, *LFMMI_ADAPTED)
        return self.out / "frames" / (network if network in own else self.frames_name(network))

    def feats(self, system: str, split: str) -> Mapping[str, np.ndarray]:
        """The features that a system reads; for some mel bins, and after them the adapted features."""
        presets = dict.fromkeys([self.feature_preset(system), *([SAT] if on_sat(system) else [])])
        adapted = SAT_WORDS if self.adapts_to_lfmmi and split != self.train else SAT
        parts = [
            ArkReader(self.features(adapted if preset == SAT else preset, split) / "feats.scp") for preset in presets
        ]
        return parts[0] if len(parts) == 1 else SideBySide(parts)

    def frames_name(self, network: str) -> str:
        """Name of a network's frames: the source of its labels and, unless the recipe's file has them, its features.

        Frames of adapted features alone are shared by all families, so those with others always name these.
        """
        source, preset = self.label_source(network), Path(self.recipe.features).stem
        if source == SAT:
            return f"{SAT}_{preset}" if self.reads_bins else SAT
        own = read_yaml(shipped("recipes") / self.name / "recipe.yaml").get("features", preset)
        return source if preset == own else f"{source}_{preset}"

    def feature_preset(self, system: str) -> str:
        if system in (LFMMI, SELF, FLAT, *LFMMI_ADAPTED) and self.recipe.lfmmi:
            return self.recipe.lfmmi.features
        if system == self.sat_network and not self.reads_bins:
            return SAT
        return self.recipe.features if system in (*self.networks, self.sat_network) else self.recipe.hmm.features

    @cached_property
    def presets(self) -> dict[str, FeatureConfig]:
        at_one_rate = {"sample_frequency": self.recipe.sample_rate, "resample": True, "mix_channels": True}
        hmm = self.recipe.hmm
        lfmmi = [self.recipe.lfmmi.features] if self.recipe.lfmmi else []
        senones = [self.recipe.features] if self.networks else []
        names = dict.fromkeys((hmm.features, hmm.aligner_features, *senones, *lfmmi))
        presets = {name: load_preset(FeatureConfig, "features", name) for name in names}
        for one, other in combinations(presets, 2):
            if Path(one).stem == Path(other).stem and presets[one] != presets[other]:
                raise MismatchError(f"{one}, {other}: different features of one name; rename a file")
        if self.recipe.sample_rate is None:
            return presets | self._at_rates_of_starts(presets)
        return {
            name: preset if preset.kind == "given" else preset.model_copy(update=at_one_rate)
            for name, preset in presets.items()
        }

    def _at_rates_of_starts(self, presets: Mapping[str, FeatureConfig]) -> dict[str, FeatureConfig]:
        """Presets of networks that start from trained ones; a mel bin has the same frequency only at the same rate."""
        networks = [*self.networks, *([LFMMI] if self.recipe.lfmmi else [])]
        found = {}
        for system in networks:
            if (start := self.start(system)) and (rate_hz := start.features.sample_frequency):
                name, rate = self.feature_preset(system), {"sample_frequency": rate_hz, "resample": True}
                found[name] = presets[name].model_copy(update=rate)
        return found


def open_experiment(name: str, out: Path | None, source: Path | None, overrides: list[str], command: str) -> Experiment:
    """Read a recipe.

    Raises
    ------
    Speech3Error
        The recipe does not exist, a key is wrong, or the source is missing or holds `out`.
    """
    path = shipped("recipes") / name / "recipe.yaml"
    if not path.exists():
        raise MissingError(f"{name}: no such recipe; choose one of: {', '.join(recipes())}")
    recipe = load_config(RecipeConfig, path, overrides)
    refuse_unused(overrides, _unused(recipe))
    if recipe.corpus not in CORPORA:
        raise MissingError(f"{path}: corpus: {recipe.corpus!r} is unknown; choose one of: {', '.join(CORPORA)}")
    if recipe.corpus not in MAKES_ITS_OWN and source is None:
        raise DataError(f"{name}: pass the directory of the corpus: recipes/run.sh {name} --source DIR")
    if source is not None and recipe.corpus in MAKES_ITS_OWN:
        raise DataError(f"{name}: makes its own corpus; remove --source")
    starts = find_starts(recipe)
    recipe = with_architectures(recipe, starts)
    source = source and source.resolve()
    directory = (out or Path("exp") / (source.name if source and name == "any" else name)).resolve()
    if out is None and source:
        _check_corpus(directory, source)
    experiment = Experiment(name, recipe, directory, source, command, starts)
    more = recipe.untranscribed.recordings if recipe.untranscribed else None
    pretrain = recipe.pretrain.recordings if recipe.pretrain else None
    negatives = recipe.negatives.recordings if recipe.negatives else None
    sources = {"--source ": source, "untranscribed=": more, "pretrain=": pretrain, "negatives=": negatives}
    if (neural := experiment.rescoring_config) and (neural.pieces or recipe.units != "words"):
        raise SettingError(
            f"lm.rescore={recipe.lm.rescore}: learns words, not pieces; for pieces train a model with `speech3 lm train"
            " --neural lstm lm.pieces=N`, and set lm.rescore to its directory"
        )
    if isinstance(recipe.lm.rescore, str) and not (neural or Path(recipe.lm.rescore).exists()):
        raise MissingError(
            f"lm.rescore={recipe.lm.rescore}: is no order, no preset of conf/lm ({', '.join(presets('lm'))}), and no"
            " path of a model"
        )
    models = {f"lm.{key}": getattr(recipe.lm, key) for key in ("arpa", "text", "rescore")}
    if neural:
        del models["lm.rescore"]  # it is not the path of a model
    check_places(experiment.out, sources, models)
    if recipe.lfmmi and recipe.lfmmi.taught and not recipe.lfmmi.adapted:
        raise SettingError("lfmmi.taught=true: learns from two networks; set lfmmi.adapted=true, too")
    if recipe.lfmmi and recipe.lfmmi.training.lfmmi.teacher is not None:
        raise SettingError("lfmmi.training.lfmmi.teacher: is for `speech3 train`; in a recipe set lfmmi.taught=true")
    if recipe.lfmmi and recipe.lfmmi.training.lfmmi.teaching is not None and not recipe.lfmmi.taught:
        raise SettingError(
            "lfmmi.training.lfmmi.teaching: there is no teacher; set lfmmi.taught=true, too, or remove it"
        )
    if recipe.lfmmi and recipe.lfmmi.adapted:
        needs = {
            "lfmmi.model=cnn_tdnn": isinstance(recipe.lfmmi.model, CnnTdnnConfig),
            "no init": LFMMI not in starts,
            "hmm.sat": recipe.hmm.lda and recipe.hmm.sat and recipe.hmm.flat_start != LFMMI,
        }
        if missing := [need for need, met in needs.items() if not met]:
            raise SettingError(f"lfmmi.adapted=true: needs {', '.join(missing)}; change these, or remove lfmmi.adapted")
    for key, config in (
        ("augment", recipe.augment),
        ("negatives", recipe.negatives),
        ("background", recipe.background),
    ):
        if config and experiment.presets[recipe.features].kind == "given":
            raise SettingError(
                f"features={recipe.features}: {key} makes audio, but given features are not computed from audio; remove"
                f" {key}"
            )
    return experiment


def _unused(recipe: RecipeConfig) -> dict[str, str]:
    """The keys, and groups of keys, that have no effect in a recipe, and what each of them is for."""
    hmm, passes = recipe.hmm, recipe.lfmmi and recipe.lfmmi.passes
    gmms = hmm.flat_start == "gmm"
    keys = {
        "hmm.mono": ("hmm.flat_start=gmm", gmms),
        "hmm.tri": ("hmm.flat_start=gmm", gmms),
        "hmm.lda": ("hmm.flat_start=gmm", gmms),
        "hmm.sat": ("hmm.flat_start=gmm and hmm.lda", gmms and hmm.lda),
        "hmm.bmmi": ("hmm.tri.discriminative=bmmi", hmm.tri.discriminative == "bmmi"),
        "flat": ("hmm.flat_start=lfmmi", not gmms),
        "pieces": ("units=sentencepiece", recipe.units == "sentencepiece"),
        "decode.metric": ("`speech3 tune`, and recipes have the key metric", False),
        "lfmmi.training.max_epochs": ("lfmmi.passes=null, and otherwise lfmmi.passes is their number", passes is None),
    }
    found = {name: purpose for name, (purpose, used) in keys.items() if not used}
    trainings = {"training": recipe.training} | ({"lfmmi.training": recipe.lfmmi.training} if recipe.lfmmi else {})
    for name, training in trainings.items():
        found |= {f"{name}.{key}": purpose for key, purpose in training.unused.items()}
        if f"{name}.workers" in workers_keys(recipe):  # there may be several, or one
            found.pop(f"{name}.asgd", None)
    return found


def _check_corpus(directory: Path, source: Path) -> None:
    """Refuse to replace another corpus's data in a directory that the user has not named."""
    if not up_to_date(directory, "data/corpus"):
        return
    if (inputs := recorded_inputs(directory, "data/corpus")) and str(source) not in inputs:
        raise OccupiedError(
            f"{directory}: is the experiment on another corpus, {inputs[0]}; pass --out DIR, with another directory, or"
            " with this one to replace its data"
        )
