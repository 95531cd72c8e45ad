"""Augmentation of recordings: what may happen to an utterance, how likely it is and how strongly."""

from typing import Annotated

from pydantic import Field, model_validator

from speech3.config.base import Config

Probability = Annotated[float, Field(ge=0, le=1)]
Range = tuple[float, float]
_RANGES = ("rt60_s", "overlap_snr_db", "noise_snr_db", "babble_snr_db", "babble_voices", "volume_db")


class AugmentConfig(Config):
    """The chain that an utterance passes, in this order; each range is drawn from evenly.

    A ratio (SNR) is one of mean powers over the whole utterance, as in Kaldi's wav-reverberate and in torchaudio.
    """

    speed: tuple[Annotated[float, Field(ge=0.5, le=2.0)], ...] = Field(
        (), description="factors, one of which is drawn (1: as it was); pitch and length move with it"
    )
    reverb_prob: Probability = 0.0
    rir_dir: str | None = Field(
        None, description="room impulse responses: audio files, or Kaldi's rir_list; none: rooms are synthesised"
    )
    rt60_s: Range = Field((0.2, 0.8), description="synthesised rooms: seconds in which the sound decays by 60 dB")
    overlap_prob: Probability = Field(0.0, description="another speaker of the data talks at the same time")
    overlap_snr_db: Range = (5.0, 20.0)
    noise_prob: Probability = Field(0.0, description="noise, or else babble, or else neither: together at most 1")
    noise_snr_db: Range = (5.0, 20.0)
    noise_dir: str | None = Field(
        None, description="audio files or a Kaldi directory (MUSAN: its speech is for babble); none: synthesised"
    )
    babble_prob: Probability = Field(0.0, description="many speakers of the data, or of MUSAN, talk in the background")
    babble_snr_db: Range = (5.0, 20.0)
    babble_voices: tuple[int, int] = (3, 7)
    telephone_prob: Probability = Field(0.0, description="300 to 3400 Hz")
    telephone_mu_law: bool = Field(True, description="and quantised to mu-law's 8 bits")
    volume_prob: Probability = 0.0
    volume_db: Range = (-12.0, 6.0)

    @model_validator(mode="after")
    def _consistent(self) -> "AugmentConfig":
        for name in _RANGES:
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: [{low:g}, {high:g}] ends below its beginning; give the smaller number first")
        if self.noise_prob + self.babble_prob > 1 + 1e-9:
            raise ValueError(
                f"noise_prob {self.noise_prob:g} and babble_prob {self.babble_prob:g} are together above 1: an"
                " utterance has one or the other behind it"
            )
        if not (self.rt60_s[0] >= 0.05 and self.rt60_s[1] <= 10):
            raise ValueError(f"rt60_s: [{self.rt60_s[0]:g}, {self.rt60_s[1]:g}]: rooms have from 0.05 to 10 s")
        if self.babble_voices[0] < 1:
            raise ValueError(f"babble_voices: {self.babble_voices[0]}: at least one has to talk")
        for given, used, probs in (
            ("rir_dir", self.rir_dir, (self.reverb_prob,)),
            ("noise_dir", self.noise_dir, (self.noise_prob, self.babble_prob)),
        ):
            if used and not any(probs):
                raise ValueError(f"{given} is never used: set {'reverb' if given == 'rir_dir' else 'noise'}_prob, too")
        if not (self.speed or any(value for key, value in self if key.endswith("_prob"))):
            raise ValueError("nothing is to happen: set one of the keys *_prob, or speed")
        return self
