"""Files as such: Kaldi ark/scp, safetensors checkpoints, atomic writes, progress and worker processes. No policy."""
