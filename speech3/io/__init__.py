"""Input and output: Kaldi ark/scp, safetensors checkpoints, atomic writes, progress, worker processes. No policy."""
