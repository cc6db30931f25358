"""Where jobs run: processes of this machine, a Ray cluster, Slurm."""
