"""The typed description of an experiment, read from YAML. Every default of the project is here or in `conf/`.

An unknown key is an error that names the file and the key. Presets are small YAML files in `conf/`: wherever a config
is expected, write the name of a preset, the path of a YAML file or the keys themselves.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.config.base import Config as Config
    from speech3.config.experiment import (
        PretrainConfig as PretrainConfig,
        PretrainingConfig as PretrainingConfig,
        RecipeConfig as RecipeConfig,
        TrainConfig as TrainConfig,
        unsized as unsized,
    )
    from speech3.config.features import FeatureConfig as FeatureConfig, PitchConfig as PitchConfig
    from speech3.config.models import (
        TIME_DELAY as TIME_DELAY,
        Activation as Activation,
        CnnConfig as CnnConfig,
        CnnTdnnConfig as CnnTdnnConfig,
        ConvolutionConfig as ConvolutionConfig,
        DnnConfig as DnnConfig,
        LstmConfig as LstmConfig,
        ModelConfig as ModelConfig,
        Normalization as Normalization,
        TdnnConfig as TdnnConfig,
        TdnnLstmConfig as TdnnLstmConfig,
        check_frequencies as check_frequencies,
    )
    from speech3.config.reading import (
        changed as changed,
        load_config as load_config,
        load_preset as load_preset,
        parse as parse,
        presets as presets,
        read_yaml as read_yaml,
        recipes as recipes,
        refuse_unused as refuse_unused,
        shipped as shipped,
        training_overrides as training_overrides,
    )
    from speech3.config.stages import (
        AugmentConfig as AugmentConfig,
        BmmiConfig as BmmiConfig,
        DecodeConfig as DecodeConfig,
        HmmConfig as HmmConfig,
        LdaConfig as LdaConfig,
        LmConfig as LmConfig,
        MonophoneConfig as MonophoneConfig,
        NeuralLmConfig as NeuralLmConfig,
        SatConfig as SatConfig,
        TransformedConfig as TransformedConfig,
        TriphoneConfig as TriphoneConfig,
    )
    from speech3.config.training import (
        MAY_CHANGE_ON_RESUME as MAY_CHANGE_ON_RESUME,
        AsgdConfig as AsgdConfig,
        CodecConfig as CodecConfig,
        LbfgsConfig as LbfgsConfig,
        SimulationConfig as SimulationConfig,
        TrainingConfig as TrainingConfig,
    )
else:
    __getattr__ = door(__file__)
