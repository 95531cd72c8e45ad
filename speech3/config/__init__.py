"""The typed description of an experiment, read from YAML. Every default of the project is here or in `conf/`.

An unknown key is an error that names the file and the key. Presets are small YAML files in `conf/`: wherever a config
is expected, write the name of a preset, the path of a YAML file or the keys themselves.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.config.base import Config
    from speech3.config.experiment import PretrainConfig, PretrainingConfig, RecipeConfig, TrainConfig, unsized
    from speech3.config.features import FeatureConfig, PitchConfig
    from speech3.config.models import (
        TIME_DELAY,
        Activation,
        CnnConfig,
        CnnTdnnConfig,
        ConvolutionConfig,
        DnnConfig,
        LstmConfig,
        ModelConfig,
        Normalization,
        TdnnConfig,
        TdnnLstmConfig,
        check_frequencies,
    )
    from speech3.config.reading import (
        changed,
        load_config,
        load_preset,
        parse,
        presets,
        read_yaml,
        refuse_unused,
        shipped,
        training_overrides,
    )
    from speech3.config.stages import (
        AugmentConfig,
        BmmiConfig,
        DecodeConfig,
        HmmConfig,
        LdaConfig,
        LmConfig,
        MonophoneConfig,
        NeuralLmConfig,
        SatConfig,
        TransformedConfig,
        TriphoneConfig,
    )
    from speech3.config.training import (
        NOT_COMPUTED,
        AsgdConfig,
        CodecConfig,
        LbfgsConfig,
        SimulationConfig,
        TrainingConfig,
    )
else:
    __getattr__ = door(__file__)

__all__ = [
    "NOT_COMPUTED",
    "TIME_DELAY",
    "Activation",
    "AsgdConfig",
    "AugmentConfig",
    "BmmiConfig",
    "CnnConfig",
    "CnnTdnnConfig",
    "CodecConfig",
    "Config",
    "ConvolutionConfig",
    "DecodeConfig",
    "DnnConfig",
    "FeatureConfig",
    "HmmConfig",
    "LbfgsConfig",
    "LdaConfig",
    "LmConfig",
    "LstmConfig",
    "ModelConfig",
    "MonophoneConfig",
    "NeuralLmConfig",
    "Normalization",
    "PitchConfig",
    "PretrainConfig",
    "PretrainingConfig",
    "RecipeConfig",
    "SatConfig",
    "SimulationConfig",
    "TdnnConfig",
    "TdnnLstmConfig",
    "TrainConfig",
    "TrainingConfig",
    "TransformedConfig",
    "TriphoneConfig",
    "changed",
    "check_frequencies",
    "load_config",
    "load_preset",
    "parse",
    "presets",
    "read_yaml",
    "refuse_unused",
    "shipped",
    "training_overrides",
    "unsized",
]
