"""speech3: from recordings and transcripts to a hybrid NN-HMM recogniser and its word error rate."""

__version__ = "0.1.0"
