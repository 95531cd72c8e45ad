"""The bootstrap from words to senones."""

from typing import Literal

from pydantic import Field

from speech3.config.base import Config


class MonophoneConfig(Config):
    """Flat-started context-independent GMMs (Kaldi's train_mono.sh)."""

    phone_iterations: int = Field(
        20, ge=0, description="initial iterations with one Gaussian shared by all states of a phone"
    )
    iterations: int = Field(40, ge=1)
    gaussians: int = Field(1000, ge=0, description="total at the end; 0: chosen according to the amount of speech")
    max_iteration_increase: int = Field(30, description="last iteration that splits Gaussians")
    realign: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 23, 26, 29, 32, 35, 38)


class TriphoneConfig(Config):
    """Decision-tree-tied triphone GMMs (Kaldi's train_deltas.sh)."""

    iterations: int = Field(35, ge=1)
    leaves: int = Field(2000, ge=0, description="0: chosen according to the amount of speech")
    gaussians: int = Field(10000, ge=0, description="0: chosen according to the amount of speech")
    max_iteration_increase: int = 25
    realign: tuple[int, ...] = (10, 20, 30)
    min_leaf_frames: float = Field(100.0, ge=1, description="minimum number of frames on either side of a split")
    discriminative: Literal["bmmi"] | None = Field(
        None, description="bmmi: also the system bmmi, these GMMs trained further with boosted MMI (keys hmm.bmmi.*)"
    )


class BmmiConfig(Config):
    """Boosted MMI of GMMs (Povey et al. 2008; `speech3.sequence.bmmi`)."""

    iterations: int = Field(4, ge=1)
    acoustic_scale: float = Field(0.1, gt=0, description="scale of the log likelihoods, as in decoding")
    boost: float = Field(0.1, ge=0, description="cost of each correct frame of a path in the denominator")
    tau: float = Field(400.0, ge=0, description="I-smoothing towards the GMMs of the iteration before, in frames")
    e: float = Field(2.0, ge=1, description="E of extended Baum-Welch: larger is slower")
    leak: float = Field(0.01, gt=0, lt=1, description="leak probability of the denominator's leaky HMM")
    longer_histories: int = Field(
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
