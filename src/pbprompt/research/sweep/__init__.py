"""Many runs, spread by local processes, Ray or Slurm."""
