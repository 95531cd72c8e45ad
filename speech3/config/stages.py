"""The stages around the network: the bootstrap from words to senones, augmentation of recordings, language model,
decoding graph and search.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from speech3.config.base import Config

Probability = Annotated[float, Field(ge=0, le=1)]
Range = tuple[float, float]
_RANGES = ("rt60_s", "overlap_snr_db", "noise_snr_db", "babble_snr_db", "babble_voices", "volume_db")


class MonophoneConfig(Config):
    """Flat-started context-independent GMMs (Kaldi's train_mono.sh)."""

    phone_iterations: int = Field(
        20, ge=0, description="initial iterations with one Gaussian shared by all states of a phone"
    )
    iterations: int = Field(40, ge=1)
    gaussians: int = Field(1000, ge=0, description="total at the end; 0: chosen according to the amount of speech")
    max_iteration_increase: int = Field(30, description="last iteration that splits Gaussians")
    realign: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 23, 26, 29, 32, 35, 38)


class _TiedConfig(Config):
    iterations: int = Field(35, ge=1)
    max_iteration_increase: int = 25
    realign: tuple[int, ...] = (10, 20, 30)
    min_leaf_frames: float = Field(100.0, ge=1, description="minimum number of frames on either side of a split")


class TriphoneConfig(_TiedConfig):
    """Decision-tree-tied triphone GMMs (Kaldi's train_deltas.sh)."""

    leaves: int = Field(2000, ge=0, description="0: chosen according to the amount of speech")
    gaussians: int = Field(10000, ge=0, description="0: chosen according to the amount of speech")
    discriminative: Literal["bmmi"] | None = Field(
        None, description="bmmi: also the system bmmi, these GMMs trained further with boosted MMI (keys hmm.bmmi.*)"
    )


class TransformedConfig(_TiedConfig):
    """Tied-triphone GMMs on transformed features: what `LdaConfig` and `SatConfig` have in common."""

    leaves: int = Field(0, ge=0, description="0: chosen according to hmm.tri.leaves and the amount of speech")
    gaussians: int = Field(0, ge=0, description="0: chosen according to hmm.tri.gaussians and the amount of speech")
    transform: tuple[int, ...] = Field((2, 4, 6, 12), description="iterations that estimate transforms")


class LdaConfig(TransformedConfig):
    """The system `lda`: LDA on spliced features, then MLLT (Kaldi's train_lda_mllt.sh)."""

    dim: int = Field(40, ge=2, description="values per frame after LDA")
    context: int = Field(3, ge=0, description="frames spliced on either side")
    min_minutes: float = Field(
        5.0, ge=0, description="minutes of training speech below which lda and sat are not trained"
    )


class SatConfig(TransformedConfig):
    """The system `sat`: speaker-adaptive training with fMLLR on the features of `lda` (Kaldi's train_sat.sh)."""

    min_frames: float = Field(500.0, ge=0, description="training: speakers with less speech get no transform")
    passes: int = Field(4, ge=1, description="decoding: passes over a data set, each with transforms from the last")
    decode_min_frames: float = Field(100.0, ge=0, description="decoding: speakers with less get no transform")
    prior_frames: float = Field(
        50.0, ge=0, description="decoding: frames of the GMMs' own that pull each transform towards the identity"
    )


class BmmiConfig(Config):
    """Boosted MMI of GMMs (Povey et al. 2008; `speech3.sequence.bmmi`)."""

    iterations: int = Field(4, ge=1)
    acoustic_scale: float = Field(0.1, gt=0, description="scale of the log likelihoods, as in decoding")
    boost: float = Field(0.1, ge=0, description="cost of each correct frame of a path in the denominator")
    tau: float = Field(400.0, ge=0, description="I-smoothing towards the GMMs of the iteration before, in frames")
    e: float = Field(2.0, ge=1, description="E of extended Baum-Welch: larger is slower")
    leaky_hmm_coefficient: float = Field(
        0.01, gt=0, lt=1, description="leak probability of the denominator's leaky HMM"
    )
    extra_lm_states: int = Field(
        5000, ge=0, description="number of histories of two senones in the denominator, besides all single senones"
    )


class HmmConfig(Config):
    """The bootstrap: from words to one senone per frame."""

    flat_start: Literal["gmm", "lfmmi"] = Field(
        "gmm",
        description="lfmmi: instead of GMMs, a small network that learns from the transcripts alone (keys flat.*)",
    )
    features: str = Field("mfcc13_d2", description="preset in conf/features")
    mono: MonophoneConfig = MonophoneConfig()
    tri: TriphoneConfig = TriphoneConfig()
    lda: LdaConfig | None = Field(LdaConfig(), description="the system lda, from whose features sat begins; null: none")
    sat: SatConfig | None = Field(SatConfig(), description="the system sat; null, or without lda: none")
    bmmi: BmmiConfig = BmmiConfig()
    aligner_features: str = Field(
        "mfcc13_d2_cmvn", description="preset for the monophones that place the boundaries of phones"
    )
    aligner: MonophoneConfig = MonophoneConfig(gaussians=200)
    silence_prob: float = Field(0.5, gt=0, lt=1, description="probability of the optional silence between words")
    position_dependent: bool = Field(
        False, description="phones are marked by their position in the word (not with SentencePiece units)"
    )
    extra_questions: str | None = Field(
        None, description="file with additional questions of the tree: one set of phones per line"
    )
    lexicon_probs: bool = Field(
        False, description="estimate probabilities of pronunciations and of silence from the alignment"
    )
    power: float = Field(0.25, description="a pdf's number of Gaussians grows with its count to this power")
    beam: float = Field(10.0, gt=0)
    retry_beam: float = Field(40.0, gt=0)


class AugmentConfig(Config):
    """The distortions of an utterance, applied in this order; values are drawn uniformly from each range.

    A signal-to-noise ratio (SNR) compares mean powers over the whole utterance, as in Kaldi's wav-reverberate and in
    torchaudio.
    """

    speed: tuple[Annotated[float, Field(ge=0.5, le=2.0)], ...] = Field(
        (), description="factors, one of which is drawn (1: unchanged); pitch and length change with it"
    )
    reverb_prob: Probability = 0.0
    rir_dir: str | None = Field(
        None,
        description="directory of room impulse responses: audio files, or Kaldi's rir_list; none: synthesised rooms",
    )
    rt60_s: Range = Field((0.2, 0.8), description="synthesised rooms: seconds in which the sound decays by 60 dB")
    overlap_prob: Probability = Field(0.0, description="another speaker of the data talks at the same time")
    overlap_snr_db: Range = (5.0, 20.0)
    noise_prob: Probability = Field(
        0.0, description="an utterance gets noise, babble or neither: noise_prob + babble_prob is at most 1"
    )
    noise_snr_db: Range = (5.0, 20.0)
    noise_dir: str | None = Field(
        None,
        description="directory of audio files, or Kaldi data directory (MUSAN: its speech makes the babble); none: "
        "synthesised noise",
    )
    babble_prob: Probability = Field(0.0, description="many speakers of the data, or of MUSAN, talk in the background")
    babble_snr_db: Range = (5.0, 20.0)
    babble_voices: tuple[int, int] = (3, 7)
    telephone_prob: Probability = Field(0.0, description="band-limited to 300 to 3400 Hz")
    telephone_mu_law: bool = Field(True, description="telephone: also quantised to 8-bit mu-law")
    volume_prob: Probability = 0.0
    volume_db: Range = (-12.0, 6.0)

    @model_validator(mode="after")
    def _consistent(self) -> "AugmentConfig":
        for name in _RANGES:
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: [{low:g}, {high:g}] is reversed; write the smaller number first")
        if self.noise_prob + self.babble_prob > 1 + 1e-9:
            raise ValueError(
                f"noise_prob {self.noise_prob:g} and babble_prob {self.babble_prob:g} add up to more than 1: an"
                " utterance gets at most one of the two; lower one of them"
            )
        if not (self.rt60_s[0] >= 0.05 and self.rt60_s[1] <= 10):
            raise ValueError(f"rt60_s: [{self.rt60_s[0]:g}, {self.rt60_s[1]:g}]: values must be between 0.05 and 10 s")
        if self.babble_voices[0] < 1:
            raise ValueError(f"babble_voices: {self.babble_voices[0]}: at least one voice is needed")
        for given, used, probs in (
            ("rir_dir", self.rir_dir, (self.reverb_prob,)),
            ("noise_dir", self.noise_dir, (self.noise_prob, self.babble_prob)),
        ):
            if used and not any(probs):
                raise ValueError(f"{given} is never used: set {'reverb' if given == 'rir_dir' else 'noise'}_prob, too")
        if not (self.speed or any(value for key, value in self if key.endswith("_prob"))):
            raise ValueError("this config changes nothing: set one of the keys *_prob, or speed")
        return self


class LmConfig(Config):
    """The language model (exactly one of an n-gram from text, an ARPA file and a grammar) and its graph."""

    order: int | None = Field(
        None, ge=1, le=6, description="order of an interpolated Kneser-Ney n-gram, estimated on the text"
    )
    text: str | None = Field(
        None,
        description="file with one sentence per line; none: the transcripts of train. With arpa: the text that the"
        " ARPA model was estimated on, for a second model estimated here",
    )
    arpa: str | None = None
    grammar: Literal["one-word"] | None = Field(None, description="one-word: exactly one word of the lexicon")
    rescore: int | str | None = Field(
        None,
        description="a second language model for the lattices, made of the text without dev's sentences: the order (1"
        " to 6) of an n-gram, or a preset of conf/lm (lstm, transformer) or a YAML file like it, whose neural model is"
        " mixed with a 4-gram; or an existing model: an ARPA file, or the directory of a neural model or mixture",
    )
    letters: int | None = Field(
        None,
        ge=0,
        le=6,
        description="order (2 to 6) of an n-gram of letters, which spells words that the language model lacks; 0: they"
        " cannot be recognised; none: 6 with lexicon=graphemes, else 0",
    )
    filler: Literal[False, True, "spelled"] = Field(
        False,
        description="a loop of phones, written <unk>, takes the place of noise and of words that the graph lacks;"
        " spelled: a trigram of phones takes the place of such words, which are spelled as the lexicon's words are",
    )
    self_loop_scale: float = Field(
        0.1, ge=0, description="scale of the transitions' log probabilities in the graph, as in mkgraph.sh"
    )

    @model_validator(mode="after")
    def _one(self) -> "LmConfig":
        if sum(value is not None for value in (self.order, self.arpa, self.grammar)) != 1:
            raise ValueError("set exactly one of order, arpa, grammar; null removes one: lm.order=null lm.arpa=FILE")
        if self.letters == 1:
            raise ValueError("letters: an order from 2 to 6, or 0 for a closed vocabulary, not 1")
        if isinstance(self.rescore, int) and not 1 <= self.rescore <= 6:
            raise ValueError(
                f"rescore: an order from 1 to 6, a preset of conf/lm, or the path of a model, not {self.rescore}"
            )
        if self.rescore is not None and self.grammar:
            raise ValueError("rescore: the lattices of a grammar have no n-grams to be replaced; use order or arpa")
        return self


class NeuralLmConfig(Config):
    """A neural language model and its training by `speech3.engine.fit`, whose arguments most of the keys are."""

    kind: Literal["lstm", "transformer"] = "lstm"
    pieces: int = Field(0, ge=0, description="number of SentencePiece's word pieces to predict; 0: words")
    width: int = Field(256, ge=1, description="of embeddings, which are also the output layer's weights, and of layers")
    layers: int = Field(1, ge=1)
    heads: int = Field(4, ge=1, description="of attention, for a transformer")
    dropout: float = Field(0.3, ge=0, lt=1, description="of embeddings, between layers and of the last layer")
    word_dropout: float = Field(0.1, ge=0, lt=1, description="share of input words that are read as <unk>")
    samples: int = Field(
        2048, ge=0, description="words drawn for each minibatch that stand for all others in the softmax; 0: all words"
    )
    longest: int = Field(128, ge=2, description="words or pieces after which a longer sentence is cut")
    strategy: str = "sgd"
    workers: int | None = Field(None, ge=1)
    simulate: bool = False
    epochs: int = Field(10, ge=1)
    minibatch: int = Field(24, ge=1, description="sentences")
    optimizer: Literal["sgd", "adamw", "muon"] = "adamw"
    learning_rate: float = Field(0.003, gt=0)
    schedule: Literal["constant", "cosine", "exponential"] = "cosine"
    gradient_clip: float = Field(1.0, gt=0)
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    device: str = "cpu"
    seed: int = Field(1, ge=0)
    options: dict[str, Any] = Field(default_factory=dict, description="further keys of training, as fit takes them")

    @model_validator(mode="after")
    def _divides(self) -> "NeuralLmConfig":
        if self.kind == "transformer" and self.width % self.heads:
            raise ValueError(f"width: {self.width} must be a multiple of heads, {self.heads}")
        return self


class DecodeConfig(Config):
    """The search, and the grid from which the acoustic scale and the word penalty are chosen on dev."""

    beam: float = Field(15.0, gt=0)
    max_active: int = Field(7000, ge=1)
    tuning_max_active: int = Field(2000, ge=1, description="max_active while scale and penalty are tuned")
    tuning_minutes: float = Field(
        10.0, gt=0, description="minutes of dev on which the grid is searched, drawn at random (always the same)"
    )
    acoustic_scales: tuple[float, ...] = Field(
        (0.03, 0.045, 0.06, 0.08, 0.1, 0.14, 0.2, 0.28), min_length=1, description="for GMMs and hybrid networks"
    )
    lfmmi_acoustic_scales: tuple[float, ...] = Field(
        (0.6, 0.8, 1.0, 1.25, 1.6), min_length=1, description="for networks trained with LF-MMI"
    )
    word_penalties: tuple[float, ...] = Field((-1.0, -0.5, 0.0, 0.5, 1.0), min_length=1)
    metric: Literal["WER", "CER", "PER"] = Field("WER", description="minimised by tuning; a recipe uses its own metric")
