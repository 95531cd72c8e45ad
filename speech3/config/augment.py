"""Augmentation of recordings: the possible distortions of an utterance, their probabilities and strengths."""

from typing import Annotated

from pydantic import Field, model_validator

from speech3.config.base import Config

Probability = Annotated[float, Field(ge=0, le=1)]
Range = tuple[float, float]
_RANGES = ("rt60_s", "overlap_snr_db", "noise_snr_db", "babble_snr_db", "babble_voices", "volume_db")


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
                raise ValueError(f"{name}: [{low:g}, {high:g}] is reversed; give the smaller number first")
        if self.noise_prob + self.babble_prob > 1 + 1e-9:
            raise ValueError(
                f"noise_prob {self.noise_prob:g} and babble_prob {self.babble_prob:g} add up to more than 1: an"
                " utterance gets at most one of the two; lower one of them"
            )
        if not (self.rt60_s[0] >= 0.05 and self.rt60_s[1] <= 10):
            raise ValueError(f"rt60_s: [{self.rt60_s[0]:g}, {self.rt60_s[1]:g}]: give values between 0.05 and 10 s")
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
